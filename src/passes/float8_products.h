// Requires: bound sizes and element types; of a trained block a forward, and its backward behind it. Parameters that are marked
//   `converted` are operands of products of matrices alone.
// Produces: those products, forward, of the gradient of their rows and of their weights' gradient, as `scaled_einsum` of float8
//   (arXiv 2209.05433; scales as torchao's recipes). An `amax` and a `to_float8` for each value and scale of it, also where
//   several products read them. Packed or not, products of the same rows are the same, where `shares_scales` says so: a scale
//   that one packed product would have is that of all of them.
//   The largest sizes of whole weights are states of the block (StateRole::WeightsAmax), which partition_parameters fills once an
//   entry; but not with `weights_differ` alone: then each routine finds them in what it reads. With `gathers` converted parameters
//   are codes themselves.
//   Tokens that share a scale are a group: `sequences` sequences by one of `context_blocks` parts of each (dims batch.g, seq.g).
//   Numbers depend on these two, and not on the layout.
//     Tensorwise   rows and weights in E4M3, gradients of results in E5M2; a scale for each group of activations, and for all of
//                  a weight. Backward reads the forward's codes of rows where nothing else there reads the rows themselves; else
//                  it makes them again from the rows and the saved `amax`, which gives the same codes
//     Rowwise      all in E4M3, scales are powers of two: one for each row of the matrix that a factor is in its product, whose
//                  columns are summed over. Summed tokens have one for each group. Each product has casts of its own
//     RowwiseGwHp  the same, but weights have one scale where they multiply gradients, and gradients of weights stay as they are
//     Blockwise    all in E4M3: a scale for 128 elements of a row next to each other (arXiv 2412.19437), and for 128 x 128 of a
//                  weight, where it is multiplied
//     Mx           all in E4M3: for 32 elements of a row next to each other a power of two (OCP Microscaling Formats 1.0), by
//                  the exponent of the largest (MxFloor) or above all (MxRceil)
//   Elements next to each other are those of the innermost dim that is summed over: of tokens, of one sequence. A rank has whole
//   blocks of them.
// Leaves alone: other products; prefill and decode; a program without converted parameters.
#pragma once

#include "ir/program.h"

namespace lockstep::passes {

// Which elements share a scale, as torchao names it.
enum class Float8Recipe { Tensorwise, Rowwise, RowwiseGwHp, Blockwise, MxFloor, MxRceil };

// Elements of a row that share a scale; 0: all.
constexpr int64_t block_of(Float8Recipe recipe) {
    if (recipe == Float8Recipe::Blockwise) return 128;
    return recipe == Float8Recipe::MxFloor || recipe == Float8Recipe::MxRceil ? 32 : 0;
}

struct Float8Options {
    Float8Recipe recipe = Float8Recipe::Tensorwise;
    int64_t sequences = 1;       // of a group; a divisor of the batch
    int64_t context_blocks = 1;  // a divisor of the sequence
    bool shares_scales = true;
    bool gathers = false;         // weights cross data ranks as codes
    bool weights_differ = false;  // what is read of weights is not what is kept, as of those that cross ranks as int8
};

ir::Program float8_products(ir::Program program, const Float8Options& options);

}  // namespace lockstep::passes
