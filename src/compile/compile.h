// Recipe -> program: reads the layout, builds the mesh, runs the passes in order. `compile()` is the table of contents of
// Lockstep.
#pragma once

#include <string>
#include <vector>

#include "compile/layout.h"
#include "compile/recipe.h"
#include "compile/stages.h"
#include "ir/program.h"
#include "ops/catalog.h"
#include "passes/route.h"

namespace lockstep::compile {

struct PassReport {
    std::string name;
    double time_s = 0;
    bool changed = false, skipped = false;
    int64_t ops = 0;  // in all routines, after the pass
};

struct CompileOptions {
    ops::KernelCatalog catalog;
    std::string stop_after;                   // a pass's name; empty: all
    std::vector<std::string> skip;            // passes switched off where the program stays legal (see optional_passes)
    std::vector<ir::EntryKind> entries = {};  // what is compiled; empty: train, and eval where validation.enable
    bool few_microbatches = false;            // only those that represent the step (stages.h); such a program is not run
    passes::RouteOptions route = {};          // where ranks run; not said: all in one process
};

struct Compiled {
    Layout layout;
    Stages stages;                      // once assign_stages has run
    std::vector<ir::Program> programs;  // by pipeline rank; before assign_stages one, of the whole model
    std::vector<PassReport> passes;

    const ir::Program& of_rank(int64_t rank) const { return programs[static_cast<size_t>(rank / layout.mesh.ranks())]; }
    std::vector<const ir::Program*> of_ranks() const;
    // Microbatches of the step for each that the programs have: 1, unless few_microbatches was asked for.
    double microbatches_for_each() const;
    int64_t arena_bytes(const ir::Program& program) const;  // of a rank, with the inputs of all microbatches
    int64_t arena_bytes() const;                            // of the rank with the most
    int64_t all_arena_bytes() const;                        // of all ranks together
};

// Throws UserError for what the recipe asks; InternalError naming the pass that broke an invariant.
Compiled compile(const Recipe& recipe, const CompileOptions& options);

// All passes in their order, and which of them may be switched off.
const std::vector<std::string>& pass_names();
const std::vector<std::string>& optional_passes();

}  // namespace lockstep::compile
