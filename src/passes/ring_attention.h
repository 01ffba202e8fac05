// Requires: final routines of blocks over placed tensors, kernels not yet chosen. An op of attention whose Op::group is not empty
// (passes/shard) means all pairs of blocks of a ring. Each rank of the ring has the queries and the keys of its own tokens.
// Produces: ops that a rank runs, in training and evaluation:
//   - attention as a list of blocks: a rank meets its own keys, then those of the rank before it, and so on. The next block
//     travels (`aside`) while one is computed, with the positions and documents of its keys. Results of all blocks are merged in
//     one place, in float32, and cast once;
//   - its backward in the same order: the sums of the gradients of keys and values travel behind their block, in float32, one
//     rank a block, and home at last. Those of the queries are added up in one place;
//   - without a ring, a backward whose gradients of keys and values are wider than the queries, as one block.
//   With a window, and in the plain order of tokens, a rank meets only the blocks that its queries can see.
// Leaves alone: generation, attention over the keys of all tokens, and packed rows.
// Source: Liu et al. 2023, 2310.01889, "Ring Attention with Blockwise Transformers for Near-Infinite Context"; Megatron-LM's p2p
// context parallelism, torch.distributed.tensor.experimental's ring attention with `alltoall`.
#pragma once

#include "ir/program.h"

namespace lockstep::passes {

ir::Program ring_attention(ir::Program program);

}  // namespace lockstep::passes
