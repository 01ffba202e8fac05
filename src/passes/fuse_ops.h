// Requires: placed ops, before kernels are chosen.
// Produces: ops of ops/fused.cpp in the place of several, wherever `serves` says that the backend has a kernel: a residual with
//   the norm behind it, a cotangent with the norm's backward before it, a sum with the product that makes one of its terms, the
//   loss of whole rows of logits with their gradient, the product of queries, keys and values with their rotation, and a
//   product with its bias, with its bias and GELU, or with GELU's backward. With `gives_more` SwiGLU's backward also gives the
//   result that a recomputing backward needs again, the optimizer the weights in a narrower type, and RMSNorm, SwiGLU and its
//   backward the largest sizes of what is cast to float8.
// Leaves alone: what another routine or a second op reads stays a result.
#pragma once

#include <functional>

#include "ir/program.h"

namespace lockstep::passes {

using Serves = std::function<bool(const ir::Routine&, const ir::Op&)>;
void fuse_ops(ir::Routine& routine, const Serves& serves, bool gives_more);

}  // namespace lockstep::passes
