// What units, segments and states say of the parameters, against the parameters themselves and the gradients of models' routines.
#pragma once

#include <string>

#include "ir/program.h"

namespace lockstep::check {

// Every parameter is in one segment, which has its decay, its shards and the axes over which its gradients are partial. States
// are split as their unit says. What outlives the run is saved, under the name of its role, and begins as it must. (A moment's
// name is that of the operand that it is in an update: step_end.h.) Empty, or the first thing wrong.
std::string wrong_segments(const ir::Program& program);

}  // namespace lockstep::check
