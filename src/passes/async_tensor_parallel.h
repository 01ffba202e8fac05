// Requires: final routines of blocks, over placed tensors, kernels not yet chosen.
// Produces: routines whose communication can overlap with their computation, in parts (passes/part_routines):
//   - an all-gather that products read row by row is cut into the group's blocks. Each rank multiplies its own block while the
//     next comes from the rank before it, and so on around the group; the results are joined (ops/blocks.cpp);
//   - a reduce-scatter of products, or of their sum, is cut in the same way: the block of another rank is on its way to it
//     while the next is computed, the own block comes last; then each rank sums its block in ascending order of ranks;
//   - an all-gather that only other ops read moves ahead, behind the communication before it;
//   - a sum of gradients comes behind the op that makes what it adds, into the same part.
//   Results are those of the whole collectives bit by bit, if a kernel's rows do not depend on their number.
// Leaves alone: routines called in chunks, generation, and collectives of other kinds or with other readers.
// Source: Wang et al., ASPLOS 2023, "Overlap Communication with Dependent Computation via Decomposition in Large Deep Learning
// Models"; torch.distributed._symmetric_memory's fused_all_gather_matmul and fused_matmul_reduce_scatter.
#pragma once

#include "ir/program.h"

namespace lockstep::passes {

ir::Program async_tensor_parallel(ir::Program program);

}  // namespace lockstep::passes
