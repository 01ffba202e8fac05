// Requires: routines over global dims, before sharding, so that bytes on wires are right.
// Produces: an element type on every float tensor and parameter: `compute`. Scalars that sum over a step (loss_sum, count) and
//   integers keep theirs.
#pragma once

#include "ir/program.h"

namespace lockstep::passes {

struct PrecisionOptions {
    Dtype compute = Dtype::F32;  // F32 or F64
};

ir::Program set_precision(ir::Program program, const PrecisionOptions& options);

}  // namespace lockstep::passes
