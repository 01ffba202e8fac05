// Where a finished program has its data, whatever the order of calls.
#pragma once

#include <string>

#include "ir/program.h"

namespace lockstep::check {

// Of all routines and entries: every tensor, workspace, binding, scratch and buffer lies inside what holds it, and the ops of
// each routine that is called find the values that they name (routine_memory.h). Empty, or the first thing wrong. Requires a
// program that ops/verify.h accepts.
std::string wrong_places(const ir::Program& program);

}  // namespace lockstep::check
