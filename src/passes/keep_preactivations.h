// Requires: forward routines as the model wrote them, before objective and derivative.
// Produces: `bias` and `gelu` in the place of each `bias_gelu` of a product. Backward then reads GELU's operand with its bias,
//   as the epilogues of a library's products write and read it (linear_gelu and matmul_dgelu of ops/fused.cpp), where it read
//   the product without. For backends that serve them; elsewhere `bias_gelu` is one kernel, and its backward another.
// Leaves alone: GELU by the error function, which no epilogue has. The parameters, and what is saved for backward but for this
//   one value: it has the size of the one that it replaces.
#pragma once

#include "ir/program.h"

namespace lockstep::passes {

ir::Program keep_preactivations(ir::Program program);

}  // namespace lockstep::passes
