// The machine that a recipe is compiled and measured against: the one at hand, or the one that a cluster file describes. `check`
// and `plan` share what a cluster file means.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/instruction_sets.h"
#include "comm/process_group.h"
#include "compile/compile.h"
#include "compile/rank_threads.h"
#include "sim/cluster.h"
#include "sim/stack_memory.h"

namespace lockstep::planning {

// runtime.instruction_set; none: the best one.
std::optional<Isa> isa_of(const compile::Config& config);
// All kernels of this process use runtime.instruction_set from now on. UserError recipe.instruction_set: this processor has none
// such.
void use_instruction_set(const compile::Config& config);
// For the machines of a process group, with this build's kernels for this processor; none: this machine.
compile::CompileOptions compile_options(const compile::Config& config, const comm::ProcessGroup* group = nullptr);

// Memory that a rank may use, and whose it is.
struct Capacity {
    std::optional<int64_t> bytes;            // less the reserve; none: not said
    std::string of;                          // "this machine's memory, 23.400 GiB / 64 ranks"
    int64_t reserve = 0;                     // bytes beside the plan: libraries, drivers
    std::optional<int64_t> host_bytes = {};  // of the host's memory beside that of a device; none: there is none, or not said
    std::string for_another = {};            // which flags and keys name another machine; may be empty
};

// cluster.memory_gib_per_rank, else the share of a machine of the process group; none: of this one. Of the host's memory beside a
// GPU's the share of the machine.
Capacity capacity_here(const compile::Config& config, int64_t ranks, const comm::ProcessGroup* group);
// What the file says, or less where cluster.memory_gib_per_rank says less. UserError check.memory_above_device: it says more.
Capacity capacity_of(const compile::Config& config, const sim::Cluster& cluster, const std::string& file, int64_t ranks);

// The kernels of this build for this processor and `threads` a rank, as runtime.kernels, instruction_set and disabled_kernels
// leave them. The rows of cluster.file choose among them if it describes a processor.
ops::KernelCatalog catalog_here(const compile::Config& config, int threads);
// A line for commands that run, where cluster.file describes a machine that this one is not.
void note_other_machine(const compile::Config& config);

// Where the kernels of a catalog come from.
struct KernelsOf {
    std::string text;           // "its kernels", "cpu kernels for avx2"
    bool this_machine = false;  // the processor at hand was asked, and its output is for it alone
};

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
// Capacity::for_another of a machine that no flag has named. `command`: what takes the flags, with a blank; empty: this command.
std::string for_another_machine(const compile::Config& config, int64_t ranks, const std::string& command);
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

// Proves the program that `options` compiled, and holds it against the memory of a rank. check.does_not_fit, with what would
// help, and check.host_memory of the host's memory beside a device's; nothing: it fits.
std::optional<UserError> refusal_of(const compile::Config& config, const compile::CompileOptions& options,
                                    const compile::Compiled& compiled, const Capacity& capacity);
// The same, thrown.
void require_runnable(const compile::Config& config, const compile::CompileOptions& options, const compile::Compiled& compiled,
                      const Capacity& capacity);

}  // namespace lockstep::planning
