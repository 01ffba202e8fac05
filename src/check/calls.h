// Which calls an entry must have, whatever they bind.
#pragma once

#include <string>

#include "ir/program.h"

namespace lockstep::check {

// Calls are of routines of the entry's own kind, and of microbatches and chunks that exist. Every forward and loss runs once for
// each instance that it serves, in each microbatch and chunk. A fragment in which islands meet has the blocks of its number.
// Empty, or the first thing wrong.
std::string wrong_calls(const ir::Program& program, const ir::Entry& entry);

}  // namespace lockstep::check
