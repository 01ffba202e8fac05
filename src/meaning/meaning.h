// What the routines of a model's blocks compute, tried out: every way in which a program's calls run a block is carried out once
// at a small size, by reference kernels on as many ranks as its ops need, and compared with the model.
//   forward   y, or the sum of losses, is what the model gives
//   backward  each gradient is the derivative of that: its change along a drawn direction, by differences of the model's
//             own results
// An op that differs in kind, order, operands, attributes or placement changes one of them, unless it changes nothing. Inputs
// are drawn, so it is a test, not a proof: what it cannot see is in README.md.
#pragma once

#include <string>
#include <vector>

#include "compile/config.h"
#include "ir/program.h"

namespace lockstep::meaning {

// Empty, or the first thing wrong: rank, call and what differs. ranks: of this configuration, as check::prove takes them; it has
// accepted them.
std::string wrong_meaning(const std::vector<const ir::Program*>& ranks, const compile::Config& config);

}  // namespace lockstep::meaning
