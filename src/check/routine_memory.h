// The memory of one routine, op by op: what each op reads and writes, at which bytes, and whose value is there.
#pragma once

#include <string>

#include "ir/program.h"

namespace lockstep::check {

// Requires a program that ops/verify.h accepts, finished: ports, temporaries and workspaces have their places.
// Proves, for every call of the routine whose scratch and ports do not overlap (memory.h):
//   - every tensor and workspace lies inside its port or the scratch, aligned for its elements; a view is where what it
//     views is;
//   - an op reads an operand only while all of its bytes hold the value that was written under its name, or that of what it
//     views; nothing is read before it is written, or added to what another value has overwritten;
//   - results and workspace of an op overlap nothing else of the op, but a result the operand that its kernel may overwrite;
//   - what ports take away, and what they only show, is there in the end.
// Empty, or the first thing wrong: routine, op and tensors.
std::string wrong_routine_memory(const ir::Program& program, const ir::Routine& routine);

}  // namespace lockstep::check
