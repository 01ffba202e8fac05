// What kind of einsum an op is.
#pragma once

#include "ir/program.h"

namespace lockstep::ops {

// Two operands, each with a dim that the other lacks, and a contraction: the mathematics of a product of matrices. Also the
// product in a fused op (ops/fused.cpp).
bool is_product(const ir::Routine& routine, const ir::Op& op);

}  // namespace lockstep::ops
