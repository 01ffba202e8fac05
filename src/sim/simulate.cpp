#include "sim/simulate.h"

#include <algorithm>

#include "base/error.h"

namespace lockstep::sim {
namespace {

struct Loaded {
    Rank rank;
    std::array<std::vector<int>, 2> calls;  // by thread: Work's index -> call
};

Loaded load(const ir::Entry& entry, const std::vector<Profile>& profiles, const compile::Placement& placement) {
    Loaded out;
    out.rank.threads.resize(placement.comm_thread ? 2 : 1);
    out.rank.threads[0].cores = placement.threads_per_rank;
    for (size_t i = 0; i < entry.calls.size(); ++i) {
        const ir::Call& call = entry.calls[i];
        // Without a communication thread both streams run in the list's order, so nobody waits.
        const size_t thread = placement.comm_thread ? static_cast<size_t>(call.stream) : 0;
        Work work;
        work.id = static_cast<int>(i);
        if (placement.comm_thread) work.waits = call.waits;
        for (const Piece& piece : profiles[call.routine].pieces) work.segments.push_back(piece.segment);
        out.rank.threads[thread].work.push_back(std::move(work));
        out.calls[thread].push_back(static_cast<int>(i));
    }
    return out;
}

void record(ir::Timeline& timeline, const Event& e, int call, const Profile& profile) {
    std::vector<ir::TimedOp>& thread = timeline.threads[static_cast<size_t>(e.thread)];
    if (e.segment < 0) {
        thread.push_back({call, -1, e.start_s, e.end_s, e.start_s});
        return;
    }
    const Piece& piece = profile.pieces[e.segment];
    double at_s = e.start_s;
    for (size_t k = 0; k < piece.shares.size(); ++k) {
        const double end_s = k + 1 == piece.shares.size() ? e.end_s : at_s + piece.shares[k] * (e.end_s - e.start_s);
        thread.push_back({call, piece.ops[k], at_s, end_s, k == 0 ? e.ready_s : at_s});
        at_s = end_s;
    }
}

}  // namespace

Simulated simulate(const ir::Program& program, const ir::Entry& entry, const Cluster& cluster,
                   const compile::Placement& placement, const mesh::Link& ring) {
    const std::vector<Profile> profiles = profiles_of(program, entry, cluster, placement, ring);
    const Loaded loaded = load(entry, profiles, placement);
    const Machine machine = cluster.devices
                                ? Machine{2, 1}  // a device computes and communicates at the same time
                                : Machine{static_cast<double>(cluster.costs.cores), static_cast<double>(program.mesh.ranks())};
    Simulated out;
    double measured = 0, unmeasured = 0;
    for (const Event& e : run({loaded.rank}, {{0}}, machine)) {
        const int call = loaded.calls[static_cast<size_t>(e.thread)][static_cast<size_t>(e.work)];
        const Profile& profile = profiles[entry.calls[call].routine];
        record(out.timeline, e, call, profile);
        out.step_time_s = std::max(out.step_time_s, e.end_s);
        const bool communicates = e.segment < 0 || profile.pieces[e.segment].segment.group >= 0;
        if (e.thread == 0 && communicates) out.exposed_communication_s += e.end_s - e.start_s;
    }
    for (const ir::Call& call : entry.calls)
        measured += profiles[call.routine].measured, unmeasured += profiles[call.routine].unmeasured;
    out.measured_share = measured + unmeasured > 0 ? measured / (measured + unmeasured) : 0;
    out.step_time_s += cluster.costs.step_overhead_s;
    out.timeline.end_s = out.step_time_s;
    return out;
}

}  // namespace lockstep::sim
