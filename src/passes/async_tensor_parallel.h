// Requires: final routines of blocks, over placed tensors, kernels not yet chosen.
// Produces: routines in parts, whose communication overlaps with their computation:
//   - an all-gather that products read row by row is cut into the group's blocks. Each rank multiplies its own block while the
//     next comes from the rank before it, and so on around the group; the results are joined (ops/blocks.cpp);
//   - a reduce-scatter of products, or of their sum, is cut in the same way: the block of another rank is on its way to it
//     while the next is computed, the own block comes last; then each rank sums its block in ascending order of ranks;
//   Where the GPUs of a group write to each other's memory, parts double: a product of one block, one of one, one of two, of
//   four, .., the own block first, and before a scatter last. They are fewer and larger, and a block still comes while the part
//   before it is multiplied. Only for groups of a power of two, and where products have enough FLOPs for each byte that comes.
//   - an all-gather that only other ops read moves ahead, behind the communication before it;
//   - a sum of gradients comes into the part that makes what it adds.
//   Results are those of the whole collectives bit by bit, if a kernel's rows do not depend on their number.
// Leaves alone: routines called in chunks, generation, and collectives of other kinds or with other readers.
// Source: Wang et al., ASPLOS 2023, "Overlap Communication with Dependent Computation via Decomposition in Large Deep Learning
// Models"; torch.distributed._symmetric_memory's fused_all_gather_matmul and fused_matmul_reduce_scatter.
#pragma once

#include "ir/program.h"
#include "mesh/algorithms.h"

namespace lockstep::passes {

// Of products, for each byte of their operand or result that other ranks send or get: from there on parts double. While a part
// of as many blocks as all before it arrives, half as many are multiplied. So this is twice what an H100 multiplies while a byte
// comes (700 TFLOP/s, 340 GB/s). A B200 has about the same ratio.
inline constexpr double kLeastFlopsByByte = 4000;

struct AsyncTensorParallelOptions {
    mesh::Topology topology = {};  // where ranks run
    double least_flops_by_byte = kLeastFlopsByByte;
};

ir::Program async_tensor_parallel(ir::Program program, const AsyncTensorParallelOptions& options = {});

}  // namespace lockstep::passes
