// Requires: placed routines; the last block's forward ends in logits and loss, its backward begins there.
// Produces: linear + cross-entropy in chunks of tokens, forward and backward together, since the loss's cotangent is known
//   before the first backward. The block becomes three routines: `forward` (up to what the chunks read), `loss` (called
//   `chunks` times a microbatch, each time on the next slice of its ports' leading dims; holds every op over vocab) and
//   `backward` (the rest). No tensor of all tokens times all vocabulary remains. An eval forward is cut in the same way.
// Leaves alone: placements and all other blocks.
// Source: the chunked fused linear cross-entropy of Liger-Kernel (arXiv 2410.10989).
#pragma once

#include "ir/program.h"

namespace lockstep::passes {

struct FuseLossOptions {
    int64_t chunk_tokens = 512;  // at most, on one rank
};

ir::Program fuse_loss(ir::Program program, const FuseLossOptions& options);

}  // namespace lockstep::passes
