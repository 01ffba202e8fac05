// Ranks that have a process and a GPU each: collectives by NCCL, in the queues that launch them. Sums are taken in ascending
// position, as on every transport: members send each other their parts, and kernels add them (Moves). Those of
// mesh::ReduceBy::Library are NCCL's own, in its order. The host waits for nobody in a launch, so members that launch different
// requests hang until the watchdog ends them; the proof of collectives excludes it.
#pragma once

#include <memory>
#include <string>

#include "comm/exchange.h"
#include "comm/moves.h"
#include "comm/process_group.h"
#include "comm/transport.h"

namespace lockstep::comm::nccl {

// UserError job.processes where the job has not one rank a process. `group` and `moves` outlive the transport. Every process
// makes it at the same time.
std::unique_ptr<Transport> transport(ProcessGroup& group, int ranks, const Moves& moves, const ExchangeOptions& options = {});

// NCCL's sums in switches differ between runs. Sets NCCL_NVLS_ENABLE=0, unless the variable is set: NCCL has no other switch.
// To be called before a transport is made.
void avoid_sums_in_switches();

// "NCCL 2.28.9"
std::string version_text();

}  // namespace lockstep::comm::nccl
