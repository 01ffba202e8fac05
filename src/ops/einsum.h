// What kind of einsum an op is.
#pragma once

#include "ops/rule.h"

namespace lockstep::ops {

// Two operands, each with a dim that the other lacks, and a contraction: the mathematics of a product of matrices. Also the
// product in a fused op (ops/fused.cpp).
bool is_product(const ir::Routine& routine, const ir::Op& op);

// Where the two factors of such a product begin among the operands; -1: another op.
int first_factor(const ir::Op& op);

// Of an einsum; of a scaled one the multiplications by scales are none.
Flops einsum_flops(const mesh::Mesh& mesh, const ir::Routine& routine, const ir::Op& op);

}  // namespace lockstep::ops
