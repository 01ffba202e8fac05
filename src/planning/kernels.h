// The kernels that a recipe's program has: those of this build, or those of a described machine.
#pragma once

#include <string>

#include "compile/config.h"
#include "ops/catalog.h"
#include "sim/cluster.h"

namespace lockstep::planning {

// UserError recipe.instruction_set: a build with LOCKSTEP_ISA=native is for a better processor than this one.
void require_processor();

// All kernels of this process use runtime.instruction_set from now on. UserError recipe.instruction_set: this processor has none
// such.
void use_instruction_set(const compile::Config& config);

// The kernels of this build for this processor and `threads` a rank, as runtime.kernels, instruction_set and disabled_kernels
// leave them. The rows of cluster.file choose among them if it describes a processor.
ops::KernelCatalog catalog_here(const compile::Config& config, int threads);
// A line for commands that run, where cluster.file describes a machine that this one is not.
void note_other_machine(const compile::Config& config);

// Where the kernels of a catalog come from.
struct KernelsOf {
    std::string text;           // "its kernels", "cpu kernels for avx2"
    bool this_machine = false;  // the processor at hand was asked, and its output is only for it
};
// Of this machine, as catalog_here().
KernelsOf kernels_here(const compile::Config& config);

struct Kernels {
    ops::KernelCatalog catalog;
    KernelsOf of;
};
// Of the machine that a cluster file describes, for `threads` a rank. UserError recipe.instruction_set.
Kernels kernels_of(const compile::Config& config, const sim::Cluster& cluster, const std::string& file, int threads);

}  // namespace lockstep::planning
