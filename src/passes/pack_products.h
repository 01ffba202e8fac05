// Requires: forward routines as the model wrote them, before objective and derivative.
// Produces: one tensor [gate_up, ffn, hidden] in the place of the weights of gate and up of a SwiGLU, where these are equal in
//   shape and stand one behind the other in the list of parameters; one product, and a `swiglu` that reads its result. Backward
//   is then one product for the gradient of the rows, without a sum, and one for that of the weights (Megatron-LM, arXiv
//   1909.08053, keeps both in one matrix).
// Leaves alone: the parameters, which stay two: in their unit, in states and in checkpoints. partition_parameters lets no padding
//   stand between them. Weights that other ops or blocks read, too.
#pragma once

#include "ir/program.h"

namespace lockstep::passes {

ir::Program pack_products(ir::Program program);

}  // namespace lockstep::passes
