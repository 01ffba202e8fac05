// [activation_checkpoint]: what backward finds saved. With modes "budget" and "memory_budget" it is solved so that the exact plan
// stays within given bytes in the least time: a driver above the passes, which plans memory for each list that it considers.
#pragma once

#include <functional>
#include <vector>

#include "compile/recipe.h"
#include "passes/save_lists.h"

namespace lockstep::compile {

// The arena, in bytes, of the program that these lists lead to.
using TotalBytes = std::function<int64_t(const std::vector<passes::SaveList>&)>;

// For a program that stands before `recompute`. Throws UserError for keys that contradict themselves.
std::vector<passes::SaveList> save_lists(const Recipe& recipe, const ir::Program& placed, const TotalBytes& total_bytes);

// Moves instances, one at a time, from one choice of least_time_choices to the next, in the order of time won per byte, as far
// as the plan fits. Throws UserError where even full recompute does not.
std::vector<passes::SaveList> fit_save_lists(const ir::Program& placed, int64_t budget_bytes, const TotalBytes& total_bytes,
                                             const passes::Rates& rates = {});

}  // namespace lockstep::compile
