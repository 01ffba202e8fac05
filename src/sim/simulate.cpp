#include "sim/simulate.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "sim/job.h"
#include "sim/played.h"

namespace lockstep::sim {
namespace {

void record(ir::Timeline& timeline, const Event& e, int call, const Profile& profile) {
    std::vector<ir::TimedOp>& thread = timeline.threads[queue_of(e.thread)];
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

// Makes room for all that the rank's threads record.
void reserve(ir::Timeline& timeline, const Job& job, size_t rank) {
    ByStepQueue<size_t> records{};
    const std::vector<std::vector<int>>& calls = job.loaded(rank).calls;
    for (size_t thread = 0; thread < calls.size(); ++thread) {
        size_t& of_queue = records[queue_of(static_cast<int>(thread))];
        for (const int call : calls[thread]) {
            ++of_queue;  // it may wait
            for (const Piece& piece : job.profile_of(rank, call).pieces) of_queue += piece.ops.size();
        }
    }
    for (const QueueName queue : kQueuesOfSteps) timeline.threads[queue].reserve(records[queue]);
}

// Did the computing thread wait for another pipeline rank: in a launch of both, or for such a launch on the other thread?
bool waited_for_pipeline(const Loaded& loaded, const ir::Entry& entry, const Event& e, int call) {
    const auto shared = [&](int c) { return loaded.crosses_pipeline[static_cast<size_t>(entry.calls[c].routine)]; };
    if (e.segment >= 0) return shared(call);
    const std::vector<int>& waits = entry.calls[call].waits;
    return std::any_of(waits.begin(), waits.end(), shared);
}

struct Span {
    double start_s, end_s;
};

// In the order of time, and without overlaps: of several threads.
std::vector<Span> united(std::vector<Span> spans) {
    std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.start_s < b.start_s; });
    std::vector<Span> out;
    for (const Span& s : spans) {
        if (!out.empty() && s.start_s <= out.back().end_s) out.back().end_s = std::max(out.back().end_s, s.end_s);
        else out.push_back(s);
    }
    return out;
}

// How long both go on at once. Both in the order of time, each without overlaps of its own.
double common_s(const std::vector<Span>& a, const std::vector<Span>& b) {
    double out = 0;
    for (size_t i = 0, k = 0; i < a.size() && k < b.size();) {
        out += std::max(0.0, std::min(a[i].end_s, b[k].end_s) - std::max(a[i].start_s, b[k].start_s));
        a[i].end_s < b[k].end_s ? ++i : ++k;
    }
    return out;
}

// What a rank does: computes on its first thread, communicates on the other.
struct Spans {
    std::vector<Span> computing, communicating, in_parts;  // in_parts: those of `communicating` that are ops of blocks
};

}  // namespace

double factor_of(const Cluster& cluster, int64_t ranks) {
    const auto of_host = static_cast<double>(cluster.ranks_of_host());
    const double doublings = std::log2(std::max(1.0, static_cast<double>(ranks) / of_host));
    return cluster.measured.multiplier * (1 + cluster.host.lost_per_doubling * doublings);
}

double with_host(double played_s, const Cluster& cluster, int64_t ranks) {
    return factor_of(cluster, ranks) * (played_s + cluster.costs.step_overhead_s + cluster.host.step_s);
}

StepTime time_of(const std::vector<ir::Program>& programs, ir::EntryKind entry, const Cluster& cluster,
                 const compile::RankThreads& rank_threads, const mesh::Link& ring, int64_t fragment) {
    const Job job(programs, entry, cluster, rank_threads, ring, fragment);
    return step_of(job, StepPlayer(job).play());
}

struct Replay::Impl {
    const std::vector<ir::Program>& programs;
    const ir::EntryKind entry;
    const compile::RankThreads rank_threads;
    // Of devices. Times of ranks that share processors are worked out anew each time.
    std::optional<Job> job = {};
    std::optional<StepPlayer> player = {};
    std::optional<StepPlayer::Played> at_first = {};
};

Replay::Replay(const std::vector<ir::Program>& programs, ir::EntryKind entry, const Cluster& cluster,
               const compile::RankThreads& rank_threads)
    : impl_(new Impl{programs, entry, rank_threads}) {
    if (!cluster.devices) return;
    impl_->job.emplace(programs, entry, cluster, rank_threads, mesh::Link{});
    impl_->player.emplace(*impl_->job);
}

Replay::~Replay() = default;

StepTime Replay::on(const Cluster& cluster) {
    if (!impl_->job) return time_of(impl_->programs, impl_->entry, cluster, impl_->rank_threads);
    const Job::Moved moved = impl_->job->move_to(cluster);
    if (moved.starts_differ) impl_->player->read_starts();
    if (moved.differs) return step_of(*impl_->job, impl_->player->play());
    if (!impl_->at_first) impl_->at_first = impl_->player->play();
    return step_of(*impl_->job, *impl_->at_first);
}

std::vector<std::vector<double>> ends_of_calls(const std::vector<ir::Program>& programs, ir::EntryKind entry,
                                               const Cluster& cluster, const compile::RankThreads& rank_threads) {
    const Job job(programs, entry, cluster, rank_threads, {});
    const WorkTimes times = times_of(job.ranks(), job.groups(), job.machine());
    std::vector<std::vector<double>> out;
    for (size_t rank = 0; rank < programs.size(); ++rank) {
        out.emplace_back(job.entry(rank).calls.size(), 0);
        for (size_t thread = 0; thread < times[rank].size(); ++thread) {
            for (size_t work = 0; work < times[rank][thread].size(); ++work)
                out[rank][static_cast<size_t>(job.call_of(rank, static_cast<int>(thread), static_cast<int>(work)))] =
                    times[rank][thread][work].end_s;
        }
    }
    return out;
}

Simulated simulate(const std::vector<ir::Program>& programs, ir::EntryKind entry, const Cluster& cluster,
                   const compile::RankThreads& rank_threads, const mesh::Link& ring) {
    const Job job(programs, entry, cluster, rank_threads, ring);
    Simulated out;
    out.timelines.resize(programs.size());
    for (size_t rank = 0; rank < programs.size(); ++rank) reserve(out.timelines[rank], job, rank);
    double measured = 0, unmeasured = 0;
    const double share = 1 / static_cast<double>(programs.size());
    std::vector<Spans> spans(programs.size());
    SteadyTimes steady(programs);
    for (const Event& e : job.events()) {
        const auto rank = static_cast<size_t>(e.rank);
        const int call = job.call_of(rank, e.thread, e.work);
        const Profile& profile = job.profile_of(rank, call);
        record(out.timelines[rank], e, call, profile);
        out.step_time_s = std::max(out.step_time_s, e.end_s);
        const bool communicates = e.segment < 0 || profile.pieces[e.segment].segment.group >= 0;
        const ir::Routine& routine = job.routine_of(rank, call);
        const ir::Call& c = job.entry(rank).calls[static_cast<size_t>(call)];
        if (e.segment >= 0 && steady.has(routine, c)) {
            const Segment& segment = profile.pieces[e.segment].segment;
            if (e.thread == 0) steady.compute(rank, e.end_s - e.ready_s);
            if (segment.link >= 0) steady.use_link(segment.link, segment.link_s);
        }
        if (rank == 0 && e.thread == 0 && e.segment >= 0) steady.end(routine, c, e.end_s);
        if (e.thread == 0 && !communicates) spans[rank].computing.push_back({e.start_s, e.end_s});
        if (e.thread != 0 && e.segment >= 0 && communicates) {
            spans[rank].communicating.push_back({e.ready_s, e.end_s});
            if (ir::is_forward(routine.kind) || ir::is_backward(routine.kind))
                spans[rank].in_parts.push_back({e.ready_s, e.end_s});
        }
        if (e.thread != 0 || !communicates) continue;
        out.exposed_communication_s += share * (e.end_s - e.start_s);
        if (waited_for_pipeline(job.loaded(rank), job.entry(rank), e, call))
            out.bubble_s += share * ((e.segment < 0 ? e.end_s : e.ready_s) - e.start_s);
    }
    for (size_t p = 0; p < programs.size(); ++p) {
        for (size_t call = 0; call < job.entry(p).calls.size(); ++call) {
            const Profile& profile = job.profile_of(p, static_cast<int>(call));
            measured += profile.measured, unmeasured += profile.unmeasured;
        }
        out.timelines[p].program = &programs[p], out.timelines[p].entry = &job.entry(p);
    }
    for (const Spans& s : spans) {
        out.hidden_communication_s += share * common_s(s.computing, united(s.communicating));
        out.hidden_in_parts_s += share * common_s(s.computing, s.in_parts);
    }
    static_cast<StepTime&>(out) = steady.step(out.step_time_s, programs, cluster);
    out.measured_share = measured + unmeasured > 0 ? measured / (measured + unmeasured) : 0;
    for (ir::Timeline& t : out.timelines) t.end_s = out.step_time_s;
    return out;
}

}  // namespace lockstep::sim
