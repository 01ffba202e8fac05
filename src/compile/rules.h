// What keys of a recipe ask for together. The values that one key may have are in the tables of keys (recipe_keys_*.cpp,
// models/) and are refused when they are assigned; what depends on several keys is here. config_of() applies it, so that
// `check`, `plan`, `show`, `diff` and `train` refuse the same recipes. What depends on the ranks is layout.h's.
#pragma once

#include <string>
#include <vector>

#include "compile/config.h"
#include "compile/recipe.h"

namespace lockstep::compile {

// Throws UserError naming the key to change.
void require_consistent(const Recipe& recipe, const Config& config);

// What a run does otherwise than a key asks, and which keys do nothing; one line each.
std::vector<std::string> warnings(const Recipe& recipe);

// Steps of the learning rate's three phases; shortened where they do not fit into the schedule, as TorchTitan does it.
struct LrPhases {
    int64_t warmup = 0, stable = 0, decay = 0;
};
LrPhases lr_phases(const Config& config);

}  // namespace lockstep::compile
