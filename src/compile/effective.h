// A recipe as what it amounts to, defaults included: for comparing two of them, and for recording one so that it means the same
// under the defaults of another version.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "compile/recipe.h"

namespace lockstep::compile {

// Every key that acts with its value as text, in the order of the table; of [model] the keys of the shape.
std::vector<std::pair<std::string, std::string>> effective(const Recipe& recipe);

// Sets all keys of [model] to what they are.
void state_model(Recipe& recipe);

}  // namespace lockstep::compile
