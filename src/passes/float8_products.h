// Requires: bound sizes and element types; of a trained block a forward, and its backward behind it. Parameters that are marked
//   `converted` are operands of products of matrices alone.
// Produces: those products, forward, of the gradient of their rows and of their weights' gradient, as `scaled_einsum` of float8
//   (arXiv 2209.05433; scales as torchao's tensorwise recipe): rows and weights in E4M3, gradients of results in E5M2. An `amax`
//   and a `to_float8` for each value, also where several products read it. Products of the same rows share the scale of their
//   weights, and of their results' gradients, where `shares_scales` says so: packed or not, they are the same.
//   Backward reads the forward's codes of rows where nothing else there reads the rows themselves; else it makes them again
//   from the rows and the saved `amax`, which gives the same codes.
//   The largest sizes of weights are states of the block (StateRole::WeightsAmax), which partition_parameters fills once an entry;
//   but not with `weights_differ` alone: then each routine finds them in what it reads. With `gathers` converted parameters are
//   codes themselves.
//   A scale of activations is of a group: `sequences` sequences by one of `context_blocks` parts of each (dims batch.g, seq.g).
//   Numbers depend on these two, and not on the layout.
// Leaves alone: other products; prefill and decode; a program without converted parameters.
#pragma once

#include "ir/program.h"

namespace lockstep::passes {

struct Float8Options {
    int64_t sequences = 1;       // of a group; a divisor of the batch
    int64_t context_blocks = 1;  // a divisor of the sequence
    bool shares_scales = true;
    bool gathers = false;         // weights cross data ranks as codes
    bool weights_differ = false;  // what is read of weights is not what is kept, as of those that cross ranks as int8
};

ir::Program float8_products(ir::Program program, const Float8Options& options);

}  // namespace lockstep::passes
