// Which blocks make a stage, which pipeline rank runs it, and in what order each rank runs its stages' forwards and backwards:
// from the recipe's keys and, where they leave it open, from the cost of the blocks.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "compile/layout.h"
#include "compile/recipe.h"
#include "passes/assign_stages.h"
#include "pipeline/transfers.h"

namespace lockstep::compile {

struct Stages {
    passes::Cut cut;
    pipeline::Table table;  // of the train entry
    // What each pipeline rank runs, sends and receives, by entry. Empty where there is one pipeline rank.
    std::vector<std::map<std::string, std::vector<pipeline::Step>>> rows;
};

// The recipe's schedule, named or from its file, for the blocks of `whole`. Empty where there is one pipeline rank. Throws
// UserError pipeline.* or recipe.* naming the key to change.
pipeline::Table table_of(const Recipe& recipe, const Layout& layout, const ir::Program& whole);

// The cut into the table's stages follows parallelism.module_fqns_per_model_part; else TorchTitan's rule where layers_per_stage,
// first_stage_less_layers or last_stage_less_layers are set; else it is the one whose costliest stage is cheapest, in executed
// FLOPs of `whole`, whose kernels are chosen. Throws UserError pipeline.* or recipe.* naming the key to change.
Stages stages_of(const Recipe& recipe, pipeline::Table table, const ir::Program& whole);

// A long step of a pipeline repeats itself: once every rank holds as many microbatches as it ever will, each further one takes
// as long as the one before and needs nothing but its input. So many microbatches show that; all of the step's where it does not
// (GPipe, schedules with several stages a rank, a schedule of one's own).
int64_t representative_microbatches(const Recipe& recipe, const Layout& layout);

// How a schedule runs backwards: whole, in two parts (input, weight), or some so and some so.
struct Backwards {
    bool whole = true, in_parts = false;
};
Backwards backwards_of(const pipeline::Table& table);

}  // namespace lockstep::compile
