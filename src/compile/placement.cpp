#include "compile/placement.h"

#include <algorithm>

namespace lockstep::compile {

Placement placement_of(const Config& config, int64_t ranks, int cores) {
    Placement p;
    p.threads_per_rank = static_cast<int>(config.runtime.threads_per_rank);
    if (p.threads_per_rank == 0) p.threads_per_rank = static_cast<int>(std::max<int64_t>(1, cores / ranks));
    const CommThread comm = config.runtime.comm_thread;
    p.comm_thread = comm == CommThread::On || (comm == CommThread::Auto && cores > ranks * p.threads_per_rank);
    return p;
}

mesh::Link local_link(const Config& config) {
    return {config.runtime.local_link_bytes_per_s, config.runtime.local_link_latency_s};
}

}  // namespace lockstep::compile
