// A composite in simpler ops, placed as the composite is.
#pragma once

#include <vector>

#include "base/function_ref.h"
#include "ops/rule.h"

namespace lockstep::ops {

// The ops by which a placed composite that has `expand` may be replaced. Tensors that lie between them are appended to the
// routine: placed by the composite's dims, partial over what is summed away or comes in partial, float32 or float64.
std::vector<Op> expanded(Routine& routine, const Op& composite);

// Asks `serve` for each op, and for each op that comes in the place of one for which it said no. It says no only to ops that have
// `expand`.
void expand_unserved(Routine& routine, FunctionRef<bool(Op&)> serve);

}  // namespace lockstep::ops
