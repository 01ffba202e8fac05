// Where and with how many threads the ranks of a recipe run: choice of backend, threads, links and checks.
#pragma once

#include "compile/compile.h"
#include "compile/config.h"
#include "compile/rank_threads.h"
#include "runtime/ranks.h"

namespace lockstep::runtime {

// How `ranks` of a recipe share the machines of a process group; none: this one.
compile::RankThreads rank_threads_of(const compile::Config& config, int64_t ranks, const comm::ProcessGroup* group);
// Why the GPUs of a host cannot write to each other's memory, or ""; every process of the group asks at the same time.
std::string why_no_peers(comm::ProcessGroup& group);
// For the ranks of a job. `group`: as above. UserError recipe.device, runtime.no_gpu.
RanksOptions ranks_options(const compile::Config& config, const compile::Compiled& compiled, comm::ProcessGroup* group);

}  // namespace lockstep::runtime
