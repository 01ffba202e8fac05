// A program's step on a machine's clock, without running it.
#pragma once

#include <memory>
#include <string>

#include "ir/timeline.h"
#include "sim/profile.h"
#include "sim/steady.h"

namespace lockstep::sim {

struct Simulated : StepTime {
    std::vector<ir::Timeline> timelines;  // of one rank of each pipeline rank; the others run the same, so it represents all
    double exposed_communication_s = 0;   // the computing thread in collectives, or waiting for the other thread; mean of ranks
    double bubble_s = 0;                  // of that, for another pipeline rank
    double hidden_communication_s = 0;    // collectives of the other thread while this one computes; mean of ranks
    double hidden_in_parts_s = 0;         // of that, in parts of routines of blocks: by asynchronous tensor parallelism
    double measured_share = 0;            // of the ops' time: from measured rows rather than rates
};

// What all times of a job on devices are multiplied with: what is lost with each doubling of hosts, and what runs on the
// machine itself have measured.
double factor_of(const Cluster& cluster, int64_t ranks);

// A step on devices whose ops have ended after `played_s`, with what no op accounts for.
double with_host(double played_s, const Cluster& cluster, int64_t ranks);

// One entry of the ranks that run `programs`, one a pipeline rank, on `cluster`, placed as `rank_threads` says. Ranks of a
// pipeline rank want the same at the same time: one of them is simulated with its part of the machine.
Simulated simulate(const std::vector<ir::Program>& programs, ir::EntryKind entry, const Cluster& cluster,
                   const compile::RankThreads& rank_threads, const mesh::Link& ring = {});

// The same step without its timelines, for who asks for many: times that differ from those of simulate() only by rounding.
StepTime time_of(const std::vector<ir::Program>& programs, ir::EntryKind entry, const Cluster& cluster,
                 const compile::RankThreads& rank_threads, const mesh::Link& ring = {}, int64_t fragment = 0);

// time_of() on devices that differ from those of `cluster` in numbers only, such as the constants of a band. What these do not
// change is made once; what they do not change at all is played once. On processors all is made anew each time.
class Replay {
public:
    Replay(const std::vector<ir::Program>& programs, ir::EntryKind entry, const Cluster& cluster,
           const compile::RankThreads& rank_threads);
    ~Replay();
    StepTime on(const Cluster& cluster);

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

// When each call ends, in the order of calls, by rank.
std::vector<std::vector<double>> ends_of_calls(const std::vector<ir::Program>& programs, ir::EntryKind entry,
                                               const Cluster& cluster, const compile::RankThreads& rank_threads);

}  // namespace lockstep::sim
