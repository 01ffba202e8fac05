// The invariant `qkv` of verify.h.
#pragma once

#include <string>

#include "ir/program.h"

namespace lockstep::ops {

// Empty, or how the op looks into rows of queries, keys and values without knowing them.
std::string wrong_use_of_qkv(const ir::Routine& routine, const ir::Op& op);

}  // namespace lockstep::ops
