// Requires: final routines of blocks, over placed tensors, kernels not yet chosen.
// Produces: in place of (or in addition to) each backward two routines: `backward_input`, what d.x needs and the gradients of
//   parameters that fall off on the way (norms, biases), and `backward_weight`, the rest: the products that make gradients of
//   weights. What the second reads of the first crosses in the port `frame.weight`; gathers, slices and renames are made again
//   instead, reductions never. The forward's frame is divided by who reads it: `frame` (only the first), `frame.kept` (only
//   the second), `frame.both`. A block without d.x has no backward_input. Where whole backwards stay, gradients that the
//   second part makes have a port of their own, `gradients.weight`.
// Leaves alone: forwards, but for the ports of their frames; other entries.
// Source: zero-bubble pipeline parallelism (arXiv 2401.10241).
#pragma once

#include "ir/program.h"

namespace lockstep::passes {

enum class WholeBackward { Drop, Keep };  // Keep: a schedule that has both, as a user's may

ir::Program split_backward(ir::Program program, WholeBackward whole);

}  // namespace lockstep::passes
