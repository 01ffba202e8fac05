// Requires: placed routines, before values are saved or computed again; `split_qkv` right before attention.
// Produces: attention that reads queries, keys and values in the row of their product, and whose backward writes their gradients
//   into such a row, in training and evaluation. `rope` rotates queries and keys within the row, forward, and their gradients,
//   backward. Nothing is copied, and the row is the one value that is saved.
// Leaves alone: what the catalog has no fast kernels for; attention whose keys are gathered over ranks, or whose queries or keys pass
//   through a norm first; a routine that reads them twice; attention with dropout.
#pragma once

#include "ir/program.h"
#include "ops/catalog.h"

namespace lockstep::passes {

ir::Program pack_attention(ir::Program program, const ops::KernelCatalog& catalog);

}  // namespace lockstep::passes
