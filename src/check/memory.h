// The memory of a finished program between routines: what every read finds, in every execution that queues and
// waits allow. routine_memory.h has the inside of a routine.
#pragma once

#include <string>

#include "ir/program.h"

namespace lockstep::check {

// Of one entry: a call reads what an earlier call wrote to the same buffer, bytes are reused after their last reader, and
// nothing that any entry keeps is overwritten. Empty, or the first thing wrong. Requires places (places.h) that are
// not wrong.
std::string wrong_memory(const ir::Program& program, const ir::Entry& entry);

}  // namespace lockstep::check
