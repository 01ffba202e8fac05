#include "sim/simulate.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>

#include "base/error.h"
#include "base/parallel.h"
#include "base/round.h"

namespace lockstep::sim {
namespace {

struct Loaded {
    Rank rank;
    std::vector<std::vector<int>> calls;                          // by thread: Work's index -> call
    std::vector<bool> crosses_pipeline;                           // by routine: it joins other pipeline ranks
    std::vector<std::shared_ptr<std::vector<Segment>>> segments;  // by routine, shared by its calls; null: none is called
};

// Seconds in which a host launches a routine's ops.
double launching_s(const ir::Routine& r, const Host& host) {
    const bool computes = ir::is_forward(r.kind) || ir::is_backward(r.kind);
    double out = 0;
    for (const ir::Op& op : r.ops) {
        if (ir::is_view(r, op)) continue;
        out += host.launch_s + (computes && ops::rule(op.kind).collective ? host.collective_s : 0);
    }
    return out;
}

// When a host has launched the first op of each call; it never waits for its device.
std::vector<double> launched_s(const ir::Program& p, const ir::Entry& entry, const Host& host) {
    std::vector<double> of_routine, out;
    for (const ir::Routine& r : p.routines) of_routine.push_back(launching_s(r, host));
    double now_s = 0;
    for (const ir::Call& call : entry.calls) {
        out.push_back(now_s + host.launch_s);
        now_s += of_routine[static_cast<size_t>(call.routine)];
    }
    return out;
}

// Does a forward or backward of a microbatch begin with the call, on its rank?
bool begins_microbatch(const ir::Program& p, const ir::Call& call, const ir::Call* before) {
    const ir::RoutineKind kind = p.routines[call.routine].kind;
    if (!ir::is_forward(kind) && !ir::is_backward(kind)) return false;
    return !before || before->microbatch != call.microbatch ||
           ir::is_forward(p.routines[before->routine].kind) != ir::is_forward(kind);
}

int last_backward_of(const ir::Program& p, const ir::Entry& entry) {
    for (size_t i = entry.calls.size(); i-- > 0;) {
        if (ir::is_backward(p.routines[entry.calls[i].routine].kind)) return static_cast<int>(i);
    }
    return -1;
}

bool is_of_step_end(ir::RoutineKind kind) { return kind == ir::RoutineKind::Stats || kind == ir::RoutineKind::Update; }

// The threads of a rank: one for each queue of a step, by its number, or one for all. A device sends and receives in lanes, one
// for each pipeline rank and direction, so that no message waits behind one that has not been sent yet.
class Threads {
public:
    Threads(Loaded& loaded, const compile::RankThreads& rank_threads, const Cluster& cluster)
        : loaded_(loaded),
          beside_(rank_threads.comm_thread),
          device_(cluster.devices),
          transfers_block_(cluster.stack.transfers_block) {
        for (size_t i = 0; i < (beside_ ? kStepQueues : 1); ++i) add();
        loaded_.rank.threads[0].cores = rank_threads.threads_per_rank;
    }

    size_t communicating() const { return beside_ ? static_cast<size_t>(QueueName::Comm) : 0; }
    // Without communication threads all queues run in the list's order, so nobody waits.
    size_t of(const ir::Routine& r, const ir::Call& call) {
        if (!beside_ || call.queue == QueueName::Compute) return 0;
        if (!device_ || r.kind != ir::RoutineKind::Transfer) return static_cast<size_t>(call.queue);
        if (transfers_block_) return 0;
        const bool receives = ir::collective_of(r.ops.front()) == mesh::Collective::Recv;
        const auto [at, is_new] = lanes_.try_emplace({r.ops.front().integer("peer"), receives}, loaded_.rank.threads.size());
        if (is_new) add();
        return at->second;
    }
    // In a queue calls follow each other: who waits for one of them has waited for those before it, and each has waited for
    // what those before it waited for. Of lanes both is said.
    std::vector<int> waits_of(const ir::Entry& entry, const ir::Call& call) {
        std::vector<int> out = call.waits;
        if (!device_) return out;
        const auto is_in_lane = [&](int c) { return entry.calls[static_cast<size_t>(c)].queue == QueueName::Pipeline; };
        for (const int w : call.waits) {
            if (!is_in_lane(w)) continue;
            for (size_t t = kStepQueues; t < loaded_.calls.size(); ++t) {
                const std::vector<int>& calls = loaded_.calls[t];
                const auto behind = std::upper_bound(calls.begin(), calls.end(), w);
                if (behind != calls.begin()) out.push_back(*(behind - 1));
            }
        }
        if (call.queue != QueueName::Pipeline) return out;
        for (const int w : call.waits) {
            if (!is_in_lane(w)) waited_ = std::max(waited_, w);
        }
        if (waited_ >= 0) out.push_back(waited_);
        return out;
    }
    // The queue whose calls a thread has.
    static QueueName queue_of(int thread) {
        return static_cast<size_t>(thread) < kStepQueues ? static_cast<QueueName>(thread) : QueueName::Pipeline;
    }
    void give(size_t thread, Work work, int call) {
        loaded_.rank.threads[thread].work.push_back(std::move(work));
        loaded_.calls[thread].push_back(call);
    }

private:
    void add() { loaded_.rank.threads.emplace_back(), loaded_.calls.emplace_back(); }

    Loaded& loaded_;
    const bool beside_, device_, transfers_block_;
    int waited_ = -1;                                   // the last call for which a transfer has waited
    std::map<std::pair<int64_t, bool>, size_t> lanes_;  // of transfers, by the other rank and direction
};

std::shared_ptr<std::vector<Segment>> segments_of(const Profile& profile) {
    auto out = std::make_shared<std::vector<Segment>>();
    out->reserve(profile.pieces.size());
    for (const Piece& piece : profile.pieces) out->push_back(piece.segment);
    return out;
}

Loaded load(const ir::Program& p, const ir::Entry& entry, const std::vector<Profile>& profiles,
            const compile::RankThreads& rank_threads, const Cluster& cluster) {
    const Host& host = cluster.host;
    const std::vector<double> launched = host.launch_s > 0 ? launched_s(p, entry, host) : std::vector<double>();
    Loaded out;
    const ir::Call* before = nullptr;  // of forwards and backwards
    const int last_backward = cluster.stack.reduces_last ? last_backward_of(p, entry) : -1;
    std::vector<std::pair<Work, int>> held;  // reductions, and their calls, that wait for it
    out.segments.resize(p.routines.size());
    Threads threads(out, rank_threads, cluster);
    for (const ir::Routine& r : p.routines) {
        const auto crosses = [&](const ir::Op& op) { return ir::crosses_pipeline(p, op); };
        out.crosses_pipeline.push_back(std::any_of(r.ops.begin(), r.ops.end(), crosses));
    }
    for (size_t i = 0; i < entry.calls.size(); ++i) {
        const ir::Call& call = entry.calls[i];
        Work work;
        work.id = static_cast<int>(i);
        if (rank_threads.comm_thread) work.waits = threads.waits_of(entry, call);
        if (!launched.empty()) work.not_before_s = launched[i];
        if (const ir::RoutineKind kind = p.routines[call.routine].kind; ir::is_forward(kind) || ir::is_backward(kind)) {
            if (begins_microbatch(p, call, before)) work.delay_s = host.microbatch_s / 2;
            before = &call;
        }
        auto& of_routine = out.segments[static_cast<size_t>(call.routine)];
        if (!of_routine) of_routine = segments_of(profiles[call.routine]);
        work.segments = of_routine;
        if (static_cast<int>(i) < last_backward && p.routines[call.routine].kind == ir::RoutineKind::ReduceStep) {
            work.waits.push_back(last_backward);
            held.emplace_back(std::move(work), static_cast<int>(i));
            continue;
        }
        // Behind all that the last backward's rank still sends: what comes next is of the end of the step.
        if (is_of_step_end(p.routines[call.routine].kind)) {
            for (auto& [reduction, of] : held) threads.give(threads.communicating(), std::move(reduction), of);
            held.clear();
        }
        threads.give(threads.of(p.routines[call.routine], call), std::move(work), static_cast<int>(i));
    }
    ensure(held.empty(), "simulator: a step without an end has reductions");
    return out;
}

void record(ir::Timeline& timeline, const Event& e, int call, const Profile& profile) {
    std::vector<ir::TimedOp>& thread = timeline.threads[Threads::queue_of(e.thread)];
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

// The groups among simulated ranks: first one of each rank by itself (it represents its pipeline rank), then those across
// pipeline ranks.
class Groups {
public:
    explicit Groups(const std::vector<ir::Program>& programs) {
        for (size_t p = 0; p < programs.size(); ++p) members_.push_back({static_cast<int>(p)});
        for (const ir::Program& p : programs) {
            for (const ir::Routine& r : p.routines) {
                for (const ir::Op& op : r.ops) {
                    if (!ir::crosses_pipeline(p, op)) continue;
                    std::vector<int> members = stages_of(p, op);
                    if (number_.try_emplace(members, static_cast<int>(members_.size())).second) members_.push_back(members);
                }
            }
        }
    }
    int of(const ir::Program& p, const ir::Op& op) const {
        return ir::crosses_pipeline(p, op) ? number_.at(stages_of(p, op)) : static_cast<int>(p.pipeline_rank);
    }
    const std::vector<std::vector<int>>& members() const { return members_; }

private:
    static std::vector<int> stages_of(const ir::Program& p, const ir::Op& op) {
        std::vector<int> members;
        const int64_t of_stage = p.mesh.ranks();
        for (int64_t rank : ir::members_of(p, op, p.mesh.group(p.pipeline_rank * of_stage, op.group))) {
            const auto pipeline_rank = static_cast<int>(rank / of_stage);
            if (members.empty() || members.back() != pipeline_rank) members.push_back(pipeline_rank);
        }
        return members;
    }

    std::vector<std::vector<int>> members_;
    std::map<std::vector<int>, int> number_;  // of those across pipeline ranks
};

// Did the computing thread wait for another pipeline rank: in a launch of both, or for such a launch on the other thread?
bool waited_for_pipeline(const Loaded& loaded, const ir::Entry& entry, const Event& e, int call) {
    const auto shared = [&](int c) { return loaded.crosses_pipeline[static_cast<size_t>(entry.calls[c].routine)]; };
    if (e.segment >= 0) return shared(call);
    const std::vector<int>& waits = entry.calls[call].waits;
    return std::any_of(waits.begin(), waits.end(), shared);
}

// Microbatches of the steady state of a pipeline: those between whose backwards, on the first pipeline rank, all ranks still
// have forwards to do. With several stages a rank they go through the pipeline in rounds of one a rank, so it is whole rounds.
struct Steady {
    int64_t before = 0, last = 0;  // of the microbatch before the first of them, and of the last

    bool has(int64_t microbatch) const { return microbatch > before && microbatch <= last; }
    double count() const { return static_cast<double>(last - before); }
};
std::optional<Steady> steady_of(const std::vector<ir::Program>& programs) {
    const int64_t ranks = std::ssize(programs), last = programs[0].microbatches - 2 * ranks - 1;
    int64_t count = std::min(std::clamp<int64_t>(ranks, 8, 16), last);
    if (programs[0].stages.size() > 1) count = std::min(round_up(8, ranks), last / ranks * ranks);
    if (count < 1) return std::nullopt;
    return Steady{last - count, last};
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

namespace {

// Do hosts give the calls of a step to their devices at the same times?
bool loads_alike(const Host& a, const Host& b) {
    return a.launch_s == b.launch_s && a.collective_s == b.collective_s && a.microbatch_s == b.microbatch_s;
}

// An entry of all programs as work for the engine.
class Job {
public:
    Job(const std::vector<ir::Program>& programs, ir::EntryKind entry, const Cluster& cluster,
        const compile::RankThreads& rank_threads, const mesh::Link& ring, int64_t fragment = 0)
        : programs_(programs),
          cluster_(&cluster),
          rank_threads_(rank_threads),
          first_host_(cluster.host),
          first_beside_collective_(cluster.beside_collective),
          host_(first_host_),
          groups_(programs),
          entries_(programs.size()),
          profiles_(programs.size()),
          loaded_(programs.size()),
          ranks_(programs.size()) {
        parallel_for(programs.size(), [&](size_t i) {
            const ir::Program& p = programs[i];
            entries_[i] = p.entry(entry, fragment);
            profiles_[i] = profiles_on(i, cluster, ring);
            loaded_[i] = load(p, *entries_[i], profiles_[i], rank_threads, cluster);
            ranks_[i] = std::move(loaded_[i].rank);
        });
        // A stage is where its first rank is.
        const int64_t of_stage = programs[0].mesh.ranks();
        const bool apart = cluster.hosts.ranks > 0 && !cluster.hosts.share_cores;
        for (size_t i = 0; apart && i < ranks_.size(); ++i)
            ranks_[i].host = static_cast<int>(static_cast<int64_t>(i) * of_stage / cluster.hosts.ranks);
    }

    // The same on another machine whose numbers differ and nothing else. False: all work is as at first. `cluster` is used until
    // the next call.
    bool move_to(const Cluster& cluster) {
        if (first_.empty()) {
            for (const Loaded& l : loaded_) {
                std::vector<std::vector<Segment>>& of_rank = first_.emplace_back(l.segments.size());
                for (size_t r = 0; r < of_rank.size(); ++r)
                    if (l.segments[r]) of_rank[r] = *l.segments[r];
            }
        }
        cluster_ = &cluster;
        const bool is_loaded = loads_alike(cluster.host, host_);
        bool differs =
            !cluster.devices || !loads_alike(cluster.host, first_host_) || cluster.beside_collective != first_beside_collective_;
        for (size_t i = 0; i < programs_.size(); ++i) {
            profiles_[i] = profiles_on(i, cluster, {});
            if (!is_loaded) {
                loaded_[i] = load(programs_[i], *entries_[i], profiles_[i], rank_threads_, cluster);
                ranks_[i].threads = std::move(loaded_[i].rank.threads);
            }
            for (size_t r = 0; r < first_[i].size(); ++r) {
                if (!loaded_[i].segments[r]) continue;
                std::vector<Segment>& segments = *loaded_[i].segments[r];
                if (is_loaded) segments = *segments_of(profiles_[i][r]);
                differs = differs || segments != first_[i][r];
            }
        }
        host_ = cluster.host;
        return differs;
    }

    // Devices share nothing; each computes and communicates at the same time.
    Machine machine() const {
        if (cluster_->devices) return {std::numeric_limits<double>::infinity(), 1, cluster_->beside_collective};
        const int64_t copies = ranks_sharing_cores(*cluster_, programs_[0].mesh.ranks() * programs_[0].mesh.islands());
        return {static_cast<double>(cluster_->costs.cores), static_cast<double>(copies)};
    }
    std::vector<Event> events() const { return run(ranks_, groups_.members(), machine()); }
    WorkTimes times() const { return times_of(ranks_, groups_.members(), machine()); }

    const ir::Entry& entry(size_t rank) const { return *entries_[rank]; }
    const Loaded& loaded(size_t rank) const { return loaded_[rank]; }
    int call_of(size_t rank, int thread, int work) const {
        return loaded_[rank].calls[static_cast<size_t>(thread)][static_cast<size_t>(work)];
    }
    const Profile& profile_of(size_t rank, int call) const { return profiles_[rank][routine_number(rank, call)]; }
    const ir::Routine& routine_of(size_t rank, int call) const { return programs_[rank].routines[routine_number(rank, call)]; }

    const std::vector<ir::Program>& programs() const { return programs_; }
    const Cluster& cluster() const { return *cluster_; }

private:
    std::vector<Profile> profiles_on(size_t rank, const Cluster& cluster, const mesh::Link& ring) const {
        const ir::Program& p = programs_[rank];
        return profiles_of(p, *entries_[rank], cluster, rank_threads_, ring, [&](const ir::Op& op) { return groups_.of(p, op); });
    }
    size_t routine_number(size_t rank, int call) const {
        return static_cast<size_t>(entries_[rank]->calls[static_cast<size_t>(call)].routine);
    }

    const std::vector<ir::Program>& programs_;
    const Cluster* cluster_;
    const compile::RankThreads rank_threads_;
    const Host first_host_;
    const double first_beside_collective_;
    Host host_;                                             // with which it is loaded
    std::vector<std::vector<std::vector<Segment>>> first_;  // by rank and routine, once it has moved
    const Groups groups_;
    std::vector<const ir::Entry*> entries_;
    std::vector<std::vector<Profile>> profiles_;
    std::vector<Loaded> loaded_;
    std::vector<Rank> ranks_;
};

bool is_of_microbatch(ir::RoutineKind kind) {
    return ir::is_forward(kind) || ir::is_backward(kind) || kind == ir::RoutineKind::Transfer;
}

// What a step does in its steady state, from what its parts do with microbatches of it.
class SteadyTimes {
public:
    explicit SteadyTimes(const std::vector<ir::Program>& programs) : of_(steady_of(programs)) {}

    bool has(const ir::Routine& r, const ir::Call& call) const {
        return of_ && is_of_microbatch(r.kind) && of_->has(call.microbatch);
    }
    void compute(size_t rank, double time_s) { busy_s_[-1 - static_cast<int>(rank)] += time_s; }
    void use_link(int link, double time_s) { busy_s_[link] += time_s; }
    // On the first pipeline rank: a work of the call has ended.
    void end(const ir::Routine& r, const ir::Call& call, double end_s) {
        if (!of_ || !ir::is_backward(r.kind)) return;
        if (call.microbatch == of_->before) before_s_ = std::max(before_s_, end_s);
        if (call.microbatch == of_->last) last_s_ = std::max(last_s_, end_s);
    }

    // Of a step whose ops have ended: with what no op accounts for. At first the last ranks work off what has piled up before
    // them; in the long run nothing is faster than the busiest part.
    StepTime step(double end_s, const std::vector<ir::Program>& programs, const Cluster& cluster) const {
        StepTime out;
        if (of_) {
            for (const auto& [part, time_s] : busy_s_) out.busiest_s = std::max(out.busiest_s, time_s / of_->count());
            out.microbatch_s = std::max((last_s_ - before_s_) / of_->count(), out.busiest_s);
        }
        out.step_time_s = end_s + cluster.costs.step_overhead_s;
        if (!cluster.devices) return out;
        const int64_t ranks = programs[0].mesh.world_ranks();
        out.step_time_s = with_host(end_s, cluster, ranks);
        for (double* of_microbatch : {&out.microbatch_s, &out.busiest_s}) *of_microbatch *= factor_of(cluster, ranks);
        return out;
    }

private:
    std::optional<Steady> of_;
    std::map<int, double> busy_s_;      // of each link, by its number; of each rank's computing thread, by -1 less its own
    double before_s_ = 0, last_s_ = 0;  // of the backwards of Steady::before and Steady::last
};

// The step of a job that took these times.
StepTime step_of(const Job& job, const WorkTimes& times) {
    const std::vector<ir::Program>& programs = job.programs();
    SteadyTimes steady(programs);
    double end_s = 0;
    for (size_t rank = 0; rank < programs.size(); ++rank) {
        const std::vector<ir::Call>& calls = job.entry(rank).calls;
        for (size_t thread = 0; thread < times[rank].size(); ++thread) {
            for (size_t work = 0; work < times[rank][thread].size(); ++work) {
                const WorkTime& time = times[rank][thread][work];
                end_s = std::max(end_s, time.end_s);
                const int call = job.call_of(rank, static_cast<int>(thread), static_cast<int>(work));
                const ir::Routine& r = job.routine_of(rank, call);
                const ir::Call& c = calls[static_cast<size_t>(call)];
                if (rank == 0 && thread == 0) steady.end(r, c, time.end_s);
                if (!steady.has(r, c)) continue;
                if (thread == 0) steady.compute(rank, time.busy_s);
                for (const Piece& piece : job.profile_of(rank, call).pieces)
                    if (piece.segment.link >= 0) steady.use_link(piece.segment.link, piece.segment.link_s);
            }
        }
    }
    return steady.step(end_s, programs, job.cluster());
}

}  // namespace

StepTime time_of(const std::vector<ir::Program>& programs, ir::EntryKind entry, const Cluster& cluster,
                 const compile::RankThreads& rank_threads, const mesh::Link& ring, int64_t fragment) {
    const Job job(programs, entry, cluster, rank_threads, ring, fragment);
    return step_of(job, job.times());
}

struct Replay::Impl {
    Job job;
    WorkTimes at_first;
};

Replay::Replay(const std::vector<ir::Program>& programs, ir::EntryKind entry, const Cluster& cluster,
               const compile::RankThreads& rank_threads)
    : impl_(new Impl{Job(programs, entry, cluster, rank_threads, {}), {}}) {}

Replay::~Replay() = default;

StepTime Replay::on(const Cluster& cluster) {
    Job& job = impl_->job;
    if (job.move_to(cluster)) return step_of(job, job.times());
    if (impl_->at_first.empty()) impl_->at_first = job.times();
    return step_of(job, impl_->at_first);
}

std::vector<std::vector<double>> ends_of_calls(const std::vector<ir::Program>& programs, ir::EntryKind entry,
                                               const Cluster& cluster, const compile::RankThreads& rank_threads) {
    const Job job(programs, entry, cluster, rank_threads, {});
    const WorkTimes times = job.times();
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
