// How the ranks of a job share a machine's cores: the one place that decides it. The executor is started so, and the simulator
// is told so.
#pragma once

#include "compile/config.h"
#include "mesh/ring.h"

namespace lockstep::compile {

struct Placement {
    int threads_per_rank = 1;
    bool comm_thread = false;  // communication runs on a thread beside each rank; else inline
};

// `ranks` on a machine of `cores`.
Placement placement_of(const Config& config, int64_t ranks, int cores);

// The link that runtime.local_link_* holds collectives between threads back to; unlimited by default.
mesh::Link local_link(const Config& config);

}  // namespace lockstep::compile
