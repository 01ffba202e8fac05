// A recipe's program to look at: whole, or as it is after one of the passes.
#pragma once

#include <string>
#include <vector>

#include "planning/machine.h"

namespace lockstep::planning {

struct ProgramOptions {
    std::string after;              // the last pass that runs; empty: all run
    std::vector<std::string> skip;  // passes to leave out (compile/compile.h, optional_passes)
    bool report = false;            // what each pass changed
};
// UserError show.unknown_pass.
void require_passes(const ProgramOptions& options);

struct MachineProgram {
    Machine machine;  // that it is compiled for
    compile::Compiled compiled;
};
// With all microbatches, on the machine of cluster.file, else this one. UserError show.unknown_pass, recipe.*, cluster.*.
MachineProgram program_of(compile::Recipe recipe, const ProgramOptions& options);

// The programs of all pipeline ranks.
std::string text_of(const compile::Compiled& compiled);

}  // namespace lockstep::planning
