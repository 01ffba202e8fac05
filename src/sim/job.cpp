#include "sim/job.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/error.h"
#include "base/parallel.h"
#include "ir/timeline.h"

namespace lockstep::sim {
namespace {

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
    Threads(Rank& rank, Loaded& loaded, const compile::RankThreads& rank_threads, const Cluster& cluster)
        : rank_(rank),
          loaded_(loaded),
          beside_(rank_threads.comm_thread),
          device_(cluster.devices),
          transfers_block_(cluster.stack.transfers_block) {
        for (size_t i = 0; i < (beside_ ? kStepQueues : 1); ++i) add();
        rank_.threads[0].cores = rank_threads.threads_per_rank;
    }

    void reserve(const ir::Entry& entry) {
        std::vector<size_t> calls(rank_.threads.size(), 0);
        for (const ir::Call& call : entry.calls) ++calls[beside_ ? static_cast<size_t>(call.queue) : 0];
        for (size_t t = 0; t < calls.size(); ++t) rank_.threads[t].work.reserve(calls[t]), loaded_.calls[t].reserve(calls[t]);
    }
    size_t communicating() const { return beside_ ? static_cast<size_t>(QueueName::Comm) : 0; }
    // Without communication threads all queues run in the list's order, so nobody waits.
    size_t of(const ir::Routine& r, const ir::Call& call) {
        if (!beside_ || call.queue == QueueName::Compute) return 0;
        if (!device_ || r.kind != ir::RoutineKind::Transfer) return static_cast<size_t>(call.queue);
        if (transfers_block_) return 0;
        const bool receives = ir::collective_of(r.ops.front()) == mesh::Collective::Recv;
        const auto [at, is_new] = lanes_.try_emplace({r.ops.front().integer("peer"), receives}, rank_.threads.size());
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
    void give(size_t thread, Work work, int call) {
        rank_.threads[thread].work.push_back(std::move(work));
        loaded_.calls[thread].push_back(call);
    }

private:
    void add() { rank_.threads.emplace_back(), loaded_.calls.emplace_back(); }

    Rank& rank_;
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

// When a host lets the calls begin.
void set_starts(Rank& rank, const Loaded& loaded, const ir::Program& p, const ir::Entry& entry, const Host& host) {
    const std::vector<double> launched = host.launch_s > 0 ? launched_s(p, entry, host) : std::vector<double>(entry.calls.size());
    for (Thread& thread : rank.threads) {
        for (Work& work : thread.work) {
            const auto call = static_cast<size_t>(work.id);
            work.not_before_s = launched[call];
            work.delay_s = loaded.begins_microbatch[call] ? host.microbatch_s / 2 : 0;
        }
    }
}

void load(Loaded& out, Rank& rank, const ir::Program& p, const ir::Entry& entry, const std::vector<Profile>& profiles,
          const compile::RankThreads& rank_threads, const Cluster& cluster) {
    out.begins_microbatch.resize(entry.calls.size());
    const ir::Call* before = nullptr;  // of forwards and backwards
    const int last_backward = cluster.stack.reduces_last ? last_backward_of(p, entry) : -1;
    std::vector<std::pair<Work, int>> held;  // reductions, and their calls, that wait for it
    out.segments.resize(p.routines.size());
    Threads threads(rank, out, rank_threads, cluster);
    threads.reserve(entry);
    for (const ir::Routine& r : p.routines) {
        const auto crosses = [&](const ir::Op& op) { return ir::crosses_pipeline(p, op); };
        out.crosses_pipeline.push_back(std::any_of(r.ops.begin(), r.ops.end(), crosses));
    }
    for (size_t i = 0; i < entry.calls.size(); ++i) {
        const ir::Call& call = entry.calls[i];
        Work work;
        work.id = static_cast<int>(i);
        if (rank_threads.comm_thread) work.waits = threads.waits_of(entry, call);
        if (const ir::RoutineKind kind = p.routines[call.routine].kind; ir::is_forward(kind) || ir::is_backward(kind)) {
            out.begins_microbatch[i] = begins_microbatch(p, call, before);
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
    set_starts(rank, out, p, entry, cluster.host);
}

// Pipeline ranks that join in an op.
std::vector<int> stages_of(const ir::Program& p, const ir::Op& op) {
    std::vector<int> members;
    const int64_t of_stage = p.mesh.ranks();
    for (int64_t rank : ir::members_of(p, op, p.mesh.group(p.pipeline_rank * of_stage, op.group))) {
        const auto pipeline_rank = static_cast<int>(rank / of_stage);
        if (members.empty() || members.back() != pipeline_rank) members.push_back(pipeline_rank);
    }
    return members;
}

// Do hosts give the calls of a step to their devices at the same times?
bool loads_alike(const Host& a, const Host& b) {
    return a.launch_s == b.launch_s && a.collective_s == b.collective_s && a.microbatch_s == b.microbatch_s;
}

}  // namespace

Groups::Groups(const std::vector<ir::Program>& programs) {
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

int Groups::of(const ir::Program& p, const ir::Op& op) const {
    return ir::crosses_pipeline(p, op) ? number_.at(stages_of(p, op)) : static_cast<int>(p.pipeline_rank);
}

QueueName queue_of(int thread) {
    return static_cast<size_t>(thread) < kStepQueues ? static_cast<QueueName>(thread) : QueueName::Pipeline;
}

Job::Job(const std::vector<ir::Program>& programs, ir::EntryKind entry, const Cluster& cluster,
         const compile::RankThreads& rank_threads, const mesh::Link& ring, int64_t fragment)
    : programs_(programs),
      cluster_(&cluster),
      first_host_(cluster.host),
      first_beside_collective_(cluster.beside_collective),
      host_(first_host_),
      groups_(programs),
      entries_(programs.size()),
      demands_(programs.size()),
      profiles_(programs.size()),
      loaded_(programs.size()),
      ranks_(programs.size()) {
    parallel_for(programs.size(), [&](size_t i) {
        const ir::Program& p = programs[i];
        entries_[i] = p.entry(entry, fragment);
        demands_[i] =
            std::make_unique<Demand>(p, *entries_[i], cluster, rank_threads, [&](const ir::Op& op) { return groups_.of(p, op); });
        profiles_[i] = demands_[i]->profiles(cluster, ring);
        load(loaded_[i], ranks_[i], p, *entries_[i], profiles_[i], rank_threads, cluster);
    });
    // A stage is where its first rank is.
    const int64_t of_stage = programs[0].mesh.ranks();
    const bool apart = cluster.hosts.ranks > 0 && !cluster.hosts.share_cores;
    for (size_t i = 0; apart && i < ranks_.size(); ++i)
        ranks_[i].host = static_cast<int>(static_cast<int64_t>(i) * of_stage / cluster.hosts.ranks);
}

Job::Moved Job::move_to(const Cluster& cluster) {
    ensure(cluster.devices, "simulator: only jobs on devices move");
    if (first_.empty()) {
        for (const Loaded& l : loaded_) {
            std::vector<std::vector<Segment>>& of_rank = first_.emplace_back(l.segments.size());
            for (size_t r = 0; r < of_rank.size(); ++r)
                if (l.segments[r]) of_rank[r] = *l.segments[r];
        }
    }
    cluster_ = &cluster;
    Moved out;
    out.starts_differ = !loads_alike(cluster.host, host_);
    out.differs = !loads_alike(cluster.host, first_host_) || cluster.beside_collective != first_beside_collective_;
    for (size_t i = 0; i < programs_.size(); ++i) {
        const std::vector<std::vector<Segment>> segments = demands_[i]->segments(cluster);
        for (size_t r = 0; r < segments.size(); ++r) {
            if (!loaded_[i].segments[r]) continue;
            std::copy(segments[r].begin(), segments[r].end(), loaded_[i].segments[r]->begin());
            out.differs = out.differs || segments[r] != first_[i][r];
        }
        if (out.starts_differ) set_starts(ranks_[i], loaded_[i], programs_[i], *entries_[i], cluster.host);
    }
    host_ = cluster.host;
    return out;
}

Machine Job::machine() const {
    if (cluster_->devices) return {std::numeric_limits<double>::infinity(), 1, cluster_->beside_collective};
    const int64_t copies = ranks_sharing_cores(*cluster_, programs_[0].mesh.ranks() * programs_[0].mesh.islands());
    return {static_cast<double>(cluster_->costs.cores), static_cast<double>(copies)};
}

}  // namespace lockstep::sim
