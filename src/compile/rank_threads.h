// How the ranks of a job share a machine's cores: the one place that decides it. The executor is started so, and the simulator
// is given the same.
#pragma once

#include <string>

#include "compile/config.h"
#include "mesh/ring.h"

namespace lockstep::compile {

struct RankThreads {
    int threads_per_rank = 1;
    bool comm_thread = false;  // communication runs on a second thread of each rank; else inline
    int64_t ranks = 0;         // that share
    int cores = 0;             // these; 0: each rank has a device
};

// `ranks` on a machine of `cores`.
RankThreads rank_threads_of(const Config& config, int64_t ranks, int cores);

// What keeps asynchronous tensor parallelism from hiding anything where ranks share cores: "no core is free ..."; empty where
// nothing does, or where a recipe does not ask for it.
std::string hides_nothing(const Config& config, const RankThreads& rank_threads);

// The link that runtime.local_link_* holds collectives between threads back to; unlimited by default.
mesh::Link local_link(const Config& config);

}  // namespace lockstep::compile
