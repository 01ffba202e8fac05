#include "compile/traffic.h"

#include <algorithm>
#include <functional>
#include <set>
#include <tuple>

#include "compile/memory_report.h"
#include "mesh/ring.h"
#include "ops/algorithms.h"
#include "ops/cost.h"

namespace lockstep::compile {
namespace {

using ByKind = std::map<std::string, double>;

// f(routine, op, times) of every collective in which a rank of the program sends, so often in a step, on average; islands meet
// every sync_steps steps.
void each_that_sends(const Compiled& compiled, const ir::Program& p,
                     const std::function<void(const ir::Routine&, const ir::Op&, double)>& f) {
    const std::vector<double> times = calls_stood_for(p, compiled.microbatches_for_each());
    std::vector<double> calls(p.routines.size());
    for (const ir::Entry& e : p.entries) {
        const double in_a_step = e.kind == ir::EntryKind::Train   ? 1
                                 : e.kind == ir::EntryKind::Outer ? 1 / static_cast<double>(compiled.layout.sync_steps)
                                                                  : 0;
        for (const ir::Call& call : e.calls) calls[static_cast<size_t>(call.routine)] += in_a_step;
    }
    for (size_t i = 0; i < calls.size(); ++i) {
        const ir::Routine& r = p.routines[i];
        for (const ir::Op& op : r.ops) {
            if (calls[i] == 0 || !ops::rule(op.kind).collective) continue;
            const mesh::CollectiveTraits& traits = ir::traits_of(op);
            if (!traits.symmetric && traits.gives == mesh::Blocks::None) continue;  // the sender has sent
            f(r, op, calls[i] * times[i]);
        }
    }
}

// What a rank of the program sends, by axes.
std::map<mesh::AxisList, ByKind> sent_by(const Compiled& compiled, const ir::Program& p) {
    std::map<mesh::AxisList, ByKind> out;
    each_that_sends(compiled, p, [&](const ir::Routine& r, const ir::Op& op, double times) {
        mesh::RingTraffic ring;
        const mesh::CollectiveTraits& traits = ir::traits_of(op);
        const int64_t members = traits.symmetric ? p.mesh.size(op.group) : 2;
        for (size_t i = 0; i < std::max(op.in.size(), op.out.size()); ++i)
            ring.add(traits.kind, members, ops::block_bytes(p.mesh, r, op, i));
        out[op.group][op.kind] += times * ring.bytes;
    });
    return out;
}

void place(GroupTraffic& g, const ir::Program& p, const mesh::AxisList& axes, const std::vector<int>& host_of) {
    g.axes = p.mesh.text(axes);
    g.tensor_parallel = std::all_of(axes.begin(), axes.end(), [&](int a) { return p.mesh.sub_axes[a].axis == mesh::Axis::tp; });
    g.members = p.mesh.size(axes);
    g.groups = p.mesh.world_ranks() / g.members;
    for (int64_t rank = 0; rank < p.mesh.world_ranks(); ++rank) {
        if (p.mesh.index(rank, axes) != 0) continue;
        const std::vector<int64_t> ranks = p.mesh.group(rank, axes);
        std::set<int> hosts;
        for (int64_t r : ranks) {
            if (!host_of.empty()) hosts.insert(host_of[static_cast<size_t>(r)]);
        }
        const auto count = static_cast<int64_t>(hosts.size());
        if (g.first.empty() || count > g.hosts) g.first = ranks, g.hosts = count;
    }
}

}  // namespace

double GroupTraffic::total_bytes() const {
    double sum = 0;
    for (const auto& [kind, b] : bytes) sum += b;
    return sum;
}

std::vector<GroupTraffic> traffic_of(const Compiled& compiled, const std::vector<int>& host_of) {
    std::map<mesh::AxisList, GroupTraffic> by_axes;
    for (const ir::Program& p : compiled.programs) {
        for (const auto& [axes, kinds] : sent_by(compiled, p)) {
            GroupTraffic& g = by_axes[axes];
            for (const auto& [kind, bytes] : kinds) g.bytes[kind] = std::max(g.bytes[kind], bytes);
            if (g.first.empty()) place(g, p, axes, host_of);
        }
    }
    std::vector<GroupTraffic> out;
    for (auto& [axes, g] : by_axes) out.push_back(std::move(g));
    std::sort(out.begin(), out.end(), [](const GroupTraffic& a, const GroupTraffic& b) {
        return std::tie(a.members, a.axes) < std::tie(b.members, b.axes);
    });
    return out;
}

std::vector<double> bytes_by_host(const Compiled& compiled, const mesh::Topology& topology) {
    std::vector<double> out;
    if (topology.is_one_process()) return out;
    for (const ir::Program& p : compiled.programs) {
        ops::PlacedGroups groups(p, topology);
        each_that_sends(compiled, p, [&](const ir::Routine& r, const ir::Op& op, double times) {
            // What all stages join is in every stage's program.
            if (ir::traits_of(op).symmetric && ir::crosses_pipeline(p, op) && p.pipeline_rank != 0) return;
            const ops::HostBytes sent = ops::bytes_sent(p, r, op, topology, groups);
            out.resize(sent.by_host.size());
            for (size_t host = 0; host < out.size(); ++host) out[host] += times * sent.by_host[host];
        });
    }
    return out;
}

}  // namespace lockstep::compile
