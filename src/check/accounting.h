// The accounting part of check: each contribution to a gradient, the norm, the loss and the token count exactly once, and every
// update after them.
#pragma once

#include <string>

#include "ir/program.h"

namespace lockstep::check {

// Empty, or the first thing wrong.
std::string wrong_accounting(const ir::Program& program, const ir::Entry& entry);

}  // namespace lockstep::check
