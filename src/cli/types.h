// The element types and the recompute of a run, in words: what a recipe's defaults decide without being written in it.
#pragma once

#include <string>

#include "compile/recipe.h"

namespace lockstep::cli {

std::string types_line(const compile::Recipe& recipe);      // "bfloat16 parameters over float32 master weights"
std::string recompute_line(const compile::Recipe& recipe);  // "none", "full", "selective 2"
// A warning where parameters are bfloat16 and this processor multiplies floats faster; empty elsewhere.
std::string slow_types_warning(const compile::Recipe& recipe);

}  // namespace lockstep::cli
