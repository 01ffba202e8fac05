// Memory that a rank of a recipe may use, here or on a described machine.
#pragma once

#include <optional>
#include <string>

#include "comm/process_group.h"
#include "compile/config.h"
#include "sim/cluster.h"

namespace lockstep::planning {

// Memory that a rank may use, and whose it is.
struct Capacity {
    std::optional<int64_t> bytes;            // less the reserve; none: not said
    std::string of;                          // "this machine's memory, 23.400 GiB / 64 ranks"
    int64_t reserve = 0;                     // bytes on top of the plan: libraries, drivers
    std::optional<int64_t> host_bytes = {};  // of the host's memory, not of a device's; none: there is none, or not said
    std::string for_another = {};            // which flags and keys name another machine; may be empty
};

// cluster.memory_gib_per_rank, else the share of a machine of the process group; none: of this one. Of the host's memory that
// serves a GPU, the share of the machine.
Capacity capacity_here(const compile::Config& config, int64_t ranks, const comm::ProcessGroup* group);
// What the file says, or less where cluster.memory_gib_per_rank says less. UserError check.memory_above_device: it says more.
Capacity capacity_of(const compile::Config& config, const sim::Cluster& cluster, const std::string& file, int64_t ranks);
// Capacity::for_another of a machine that no flag has named. `command`: what takes the flags, with a blank;
// empty: this command.
std::string for_another_machine(const compile::Config& config, int64_t ranks, const std::string& command);

}  // namespace lockstep::planning
