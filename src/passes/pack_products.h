// Requires: forward routines as the model wrote them, before objective and derivative.
// Produces: one product in the place of several that multiply the same rows, where their weights are one behind the other in
//   the list of parameters (Megatron-LM, arXiv 1909.08053, keeps them in one matrix):
//     gate and up of a SwiGLU. Weight [gate_up, ffn, hidden]; `swiglu` reads the result.
//     queries, keys and values. Weight [qkv, kv_heads, head_dim, hidden] with qkv = group + 2; `split_qkv` takes the result
//     apart and rotates queries and keys, where the model does so next. Their biases are one, too.
//   Backward is then one product for the gradient of the rows, without a sum, and one for that of the weights.
// Leaves alone: the parameters, which stay as many: in their unit, in states and in checkpoints. partition_parameters lets no
//   padding come between them. Weights that other ops or blocks read, too. Weights of which only some are converted to
//   8 bits: each has its own product, as the recipe's filters ask. Weights that hold a row for each input, as GPT-2's:
//   side by side they are no matrix.
#pragma once

#include "ir/program.h"

namespace lockstep::passes {

struct PackProductsOptions {
    // Whether to pack queries, keys and values. Not where tensor parallelism cuts the query heads of one key head: such ranks
    // share keys and values, but not queries, and the weights have shards of different ranks.
    bool queries_keys_values = true;
};

ir::Program pack_products(ir::Program program, const PackProductsOptions& options);

}  // namespace lockstep::passes
