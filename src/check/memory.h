// The memory of a finished program between routines: where calls bind what, and what every read finds, in every execution that
// streams and waits allow. routine_memory.h has the inside of a routine.
#pragma once

#include <string>

#include "ir/program.h"

namespace lockstep::check {

// Of all routines and entries: every tensor, workspace, binding, scratch and buffer lies inside what holds it, and the ops of
// each routine find the values that they name. Empty, or the first thing wrong. Requires a program that ops/verify.h accepts.
std::string wrong_places(const ir::Program& program);

// Of one entry: a call reads what an earlier call wrote to the same buffer, bytes are reused after their last reader, and nothing
// that any entry keeps is overwritten. Empty, or the first thing wrong. Requires places that are not wrong.
std::string wrong_memory(const ir::Program& program, const ir::Entry& entry);

}  // namespace lockstep::check
