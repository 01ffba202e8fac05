// Requires: forward routines over global dims, one a block; the last one accumulates `loss_sum`.
// Produces: for every block a backward routine d.y -> d.x that adds into the port `gradients`, and in the forward a port
//   `frame` that lists what backward reads of it. Inputs and what follows only from them, and ops marked always_recomputed, are
//   never saved: the backward runs them again. The cotangent of the loss is the scalar inv_n, or loss_seed where there is one.
//   Nothing below ever needs a derivative.
// Leaves alone: routines of other entries.
#pragma once

#include "ir/program.h"

namespace lockstep::passes {

ir::Program differentiate(ir::Program program);

}  // namespace lockstep::passes
