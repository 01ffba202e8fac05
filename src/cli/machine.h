// The machine that a recipe is compiled and measured against: the one at hand, or the one that a cluster file describes. `check`
// and `plan` share what a cluster file means.
#pragma once

#include <optional>
#include <string>

#include "cli/commands.h"
#include "compile/placement.h"
#include "sim/cluster.h"

namespace lockstep::cli {

// Memory that a rank may use, and whose it is.
struct Capacity {
    std::optional<int64_t> bytes;  // less the reserve; none: not said
    std::string of;                // "this machine's memory, 23.400 GiB / 64 ranks"
    int64_t reserve = 0;           // bytes beside the plan: libraries, drivers
    std::string for_another = {};  // which flags and keys name another machine; may be empty
};

// cluster.memory_gib_per_rank, else the share of a machine of the crew; none: of this one.
Capacity capacity_here(const compile::Config& config, int64_t ranks, const comm::Crew* crew);
// cluster.memory_gib_per_rank, else what the file says.
Capacity capacity_of(const compile::Config& config, const sim::Cluster& cluster, const std::string& file, int64_t ranks);

// Ranks as a cluster file describes them: hosts, threads of each, and how programs are compiled for them.
struct Described {
    sim::Cluster cluster;  // hosts.ranks and ranks_per_process as the recipe's keys say, where they do
    compile::Placement placement;
    compile::CompileOptions options;
    Capacity capacity;
};
// UserError cluster.*, plan.no_link.
Described described_machine(const compile::Config& config, const std::string& file, const char* asked_by);

// Proves the program that `options` compiled, and holds it against the memory of a rank. UserError check.* where it would not
// run.
void require_runnable(const compile::Config& config, const compile::CompileOptions& options, const compile::Compiled& compiled,
                      const Capacity& capacity);

}  // namespace lockstep::cli
