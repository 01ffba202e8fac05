// The arithmetic of reductions on plain arrays, for every transport that reduces on a CPU.
// A transport reduces members in ascending position: combine(combine(member 0, member 1), member 2) and so on.
// Compiled without -ffast-math: the maximum looks for NaN.
#pragma once

#include <cstdint>

#include "comm/communicator.h"

namespace lockstep::comm {

// out[i] = a[i] op b[i] for i in 0 .. count. out may be a or b, and does not overlap them otherwise.
void combine(Type type, ReduceOp op, const void* a, const void* b, void* out, int64_t count);

}  // namespace lockstep::comm
