// Requires: routines over global dims, before sharding, so that bytes on wires are right.
// Produces: an element type on every float tensor and parameter. With one type (float32, float64) all have it. With a narrower
//   type for storage (bfloat16 under float32; float32 under float64, for tests) parameters, activations and saved values are
//   stored in it, while statistics of norms, attention's lse, the loss from the logits on, and every sum over microbatches or
//   chunks (gradients) stay in the wide type. An op may give its results in either: it computes in the wide type and rounds
//   once, so a product whose result is added to a gradient, or is a logit, writes the wide type directly. Where a value is
//   wanted in both types an explicit `cast` is in between. Scalars that sum over a step (loss_sum, count) are float64 and stay
//   so. With `wide_residual` the residual stream is wide, too: what crosses a block's border, forward and backward, the sums
//   inside, and what is made for nothing else than to be added to them or to flow through a norm into their cotangents.
//   With `wide_norms` the weights and biases of norms are wide; what norms write is as it was. With `narrow_logits` the product
//   that makes the logits writes the narrow type, and the loss reads it; logits that leave the program are wide in any case.
//   With `wide_key_gradients` attention gives the gradients of keys and values in the wide type, in which ranks add them up.
// Leaves alone: everything but element types; integers.
// Source: mixed precision training (arXiv 1710.03740), Megatron-LM's --fp32-residual-connection; which ops stay wide is in
//   their rules (ops/rule.h).
#pragma once

#include "ir/program.h"

namespace lockstep::passes {

struct PrecisionOptions {
    Dtype wide = Dtype::F32;    // F32 or F64: arithmetic that adds up
    Dtype narrow = Dtype::F32;  // parameters and activations; not wider than `wide`
    bool wide_residual = false, wide_norms = false, narrow_logits = false, wide_key_gradients = false;
};

ir::Program set_precision(ir::Program program, const PrecisionOptions& options);

}  // namespace lockstep::passes
