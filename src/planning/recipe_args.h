// Where a recipe comes from: a file, keys set in addition to it, a number of ranks.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "comm/process_group.h"
#include "compile/recipe.h"
#include "interop/reading.h"

namespace lockstep::planning {

struct RecipeArgs {
    std::string path;
    std::vector<std::pair<std::string, std::string>> settings;  // section.key, value as in TOML; quotes are optional
    int64_t ranks = 0;                                          // 0: as the recipe says
};

// Reads the file, in any of the formats of interop/read.h, and applies the settings. UserError recipe.*.
interop::Reading read_recipe(const RecipeArgs& args);
// Reports keys that do nothing, the recipe's warnings, its element types and its recompute.
void announce(const compile::Recipe& recipe);
// Both, and what became of the statements of another system's file. What no plan depends on may be left out of it.
interop::Reading announced(const RecipeArgs& args);
// The same for what trains. UserError recipe.left_out where something is left out.
interop::Reading announced_for_training(const RecipeArgs& args);
// If the recipe leaves the number of ranks open, a process group of several processes has one each.
void take_ranks(compile::Recipe& recipe, const comm::ProcessGroup& group);

}  // namespace lockstep::planning
