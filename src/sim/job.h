// An entry of all programs as work for the engine, and the way back: which call a work is, and what it asks.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "sim/profile.h"

namespace lockstep::sim {

// The groups among simulated ranks: first one of each rank by itself (it represents its pipeline rank), then those across
// pipeline ranks.
class Groups {
public:
    explicit Groups(const std::vector<ir::Program>& programs);
    int of(const ir::Program& p, const ir::Op& op) const;
    const std::vector<std::vector<int>>& members() const { return members_; }

private:
    std::vector<std::vector<int>> members_;
    std::map<std::vector<int>, int> number_;  // of those across pipeline ranks
};

// What the works of a program's rank are.
struct Loaded {
    std::vector<bool> begins_microbatch;                          // by call: on its rank, a forward or backward of one
    std::vector<std::vector<int>> calls;                          // by thread: Work's index -> call
    std::vector<bool> crosses_pipeline;                           // by routine: it joins other pipeline ranks
    std::vector<std::shared_ptr<std::vector<Segment>>> segments;  // by routine, shared by its calls; null: none is called
};

// The queue whose calls a thread has.
QueueName queue_of(int thread);

class Job {
public:
    Job(const std::vector<ir::Program>& programs, ir::EntryKind entry, const Cluster& cluster,
        const compile::RankThreads& rank_threads, const mesh::Link& ring, int64_t fragment = 0);

    // Of devices: the same on another machine whose numbers differ and nothing else, in the same places of memory. `cluster` is
    // used until the next call. Profiles stay those of the first machine.
    struct Moved {
        bool differs = false;        // from the first machine: else all work is as at first
        bool starts_differ = false;  // from the machine before: Work::not_before_s and delay_s have changed
    };
    Moved move_to(const Cluster& cluster);

    // Devices share nothing; each computes and communicates at the same time.
    Machine machine() const;
    std::vector<Event> events() const { return run(ranks_, groups_.members(), machine()); }

    const std::vector<Rank>& ranks() const { return ranks_; }
    const std::vector<std::vector<int>>& groups() const { return groups_.members(); }
    const ir::Entry& entry(size_t rank) const { return *entries_[rank]; }
    const Loaded& loaded(size_t rank) const { return loaded_[rank]; }
    const Profile& profile_of(size_t rank, int call) const { return profiles_[rank][routine_number(rank, call)]; }
    const ir::Routine& routine_of(size_t rank, int call) const { return programs_[rank].routines[routine_number(rank, call)]; }
    int call_of(size_t rank, int thread, int work) const {
        return loaded_[rank].calls[static_cast<size_t>(thread)][static_cast<size_t>(work)];
    }
    const std::vector<Segment>& segments_of(size_t rank, int call) const {
        return *loaded_[rank].segments[routine_number(rank, call)];
    }

    const std::vector<ir::Program>& programs() const { return programs_; }
    const Cluster& cluster() const { return *cluster_; }

private:
    size_t routine_number(size_t rank, int call) const {
        return static_cast<size_t>(entries_[rank]->calls[static_cast<size_t>(call)].routine);
    }

    const std::vector<ir::Program>& programs_;
    const Cluster* cluster_;
    const Host first_host_;
    const double first_beside_collective_;
    Host host_;                                             // with which it is loaded
    std::vector<std::vector<std::vector<Segment>>> first_;  // by rank and routine, once it has moved
    const Groups groups_;
    std::vector<const ir::Entry*> entries_;
    std::vector<std::unique_ptr<Demand>> demands_;  // by rank
    std::vector<std::vector<Profile>> profiles_;
    std::vector<Loaded> loaded_;
    std::vector<Rank> ranks_;
};

}  // namespace lockstep::sim
