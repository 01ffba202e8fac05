// The numbers of a step's end against those of the recipe: of the optimizer, of clipping, of the loss scale, of islands. A number
// that occurs once in a program can be held to nothing else.
#pragma once

#include <string>

#include "compile/config.h"
#include "ir/program.h"

namespace lockstep::meaning {

// Empty, or the first number that is not the recipe's. check::prove has accepted the program, so that it is known which segments
// decay.
std::string wrong_numbers(const ir::Program& program, const compile::Config& config);

}  // namespace lockstep::meaning
