// Requires: final routines, kernels not yet chosen. Ops that run at the same time as the others around them have the attribute
// `aside`: communication that passes/ring_attention or passes/async_tensor_parallel placed.
// Produces: each such routine in parts (passes/parts.h), in its order: runs of ops that are aside, and runs of those that are
// not. A value that a part saves has a frame of this part, in the routine that reads it, too. No op is marked.
// Leaves alone: routines without a marked op.
#pragma once

#include "ir/program.h"

namespace lockstep::passes {

ir::Program part_routines(ir::Program program);

}  // namespace lockstep::passes
