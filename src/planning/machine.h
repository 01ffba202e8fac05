// The machine that a recipe is compiled and measured against: the one at hand, or the one that a cluster file describes.
// `check` and `plan` share what a cluster file means.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "comm/process_group.h"
#include "compile/compile.h"
#include "compile/rank_threads.h"
#include "planning/capacity.h"
#include "planning/kernels.h"
#include "sim/cluster.h"
#include "sim/stack_memory.h"

namespace lockstep::planning {

// For the machines of a process group, whose processes call it at the same time, with this build's kernels for this processor;
// none: this machine.
compile::CompileOptions compile_options(const compile::Config& config, comm::ProcessGroup* group = nullptr);

// What a recipe is compiled for and held against: ranks as a cluster file describes them (hosts, threads, kernels), or this
// machine.
struct Machine {
    std::optional<sim::Cluster> cluster;  // hosts.ranks and ranks_per_process as the recipe's keys say, where they do; none: here
    std::string file, stack;              // paths; the stack's may be empty
    compile::RankThreads rank_threads;
    compile::CompileOptions options;  // microbatches: Steady
    Capacity capacity;
    KernelsOf kernels;
};
// UserError cluster.*, recipe.instruction_set.
Machine described_machine(const compile::Config& config, const std::string& file, const char* asked_by);
Machine described_machine(const compile::Config& config, sim::Cluster cluster, const std::string& file);
// The machine of `flag` (a path, or empty), else of cluster.file, else the one at hand.
Machine machine_of(const compile::Config& config, const std::string& flag);
// The first line of what `check` and `show` print, and the same as an object.
std::string machine_text(const Machine& machine);
nlohmann::ordered_json machine_json(const Machine& machine);

// Memory of the fullest rank of a step that `plan` estimates.
struct Needed {
    int64_t bytes = 0;                      // of Lockstep's program; of a stack that is described, what its allocator reserves
    std::vector<sim::StackBytes> of_stack;  // by pipeline rank; empty: the stack's memory is not described
    double allocated_bytes = 0;             // of a stack's fullest rank
};
Needed needed_by(const Machine& machine, const compile::Compiled& compiled);
// Have the machine's ranks that much? Yes where it is not said.
bool has_room(const Machine& machine, int64_t bytes);

}  // namespace lockstep::planning
