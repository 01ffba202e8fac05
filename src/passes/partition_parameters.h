// Requires: final routines; every gradient's placement (its partial axes) known.
// Produces: flat padded units of parameters (embedding, each layer, head) in segments of equal treatment, and their routines:
//     fetch         where asked for: secondary = all_gather(weights), split only over the innermost ranks of the weights'
//                   split, once an entry (hpZ of arXiv 2306.10209)
//     gather        full = all_gather of secondary, or of the weights, over its split; a grouped launch, one member a segment
//     free          the gathered copy ends
//     reduce_micro  gradients += reduce_scatter(local) over the gradients' split, after each microbatch
//     reduce_step   what is still partial, on shards: reduce_scatter over the rest of the optimizer's split, then all_reduce
//     stats         squares of gradients, each element counted by one owner; then once `stats.all`: one all_reduce over the
//                   world of norm and loss, clip coefficient, commit flag
//     mirror.*      of a unit whose shared parameters other pipeline ranks mirror: before stats the owner adds the mirror's
//                   reduced gradients to its own, after update the mirror takes the owner's weights
//     update        the optimizer on its shard (of whole matrices: gathered for it), all_gather where weights are split less
//     outer         where islands meet: the mean of what they have changed since moves the anchor, and weights follow it
//     snapshot      where asked for: copies of all that update changes, for a checkpoint to be written from
//   and `unit` on every port of parameters and gradients. weights | gradients | optimizer are nested prefixes of one list of
//   data sub-axes, innermost first: replicated data parallelism, ZeRO-1, 2, 3 (arXiv 1910.02054), FSDP and HSDP (arXiv
//   2304.11277) are settings of it.
//   Parameters that stay wide while others are narrow (norms', see set_precision) make a unit `<block>.wide` that every data
//   rank has whole: small as they are, a collective a step is all that they take.
//   A program without gradients gets only gather and free.
// Leaves alone: the mathematics of all blocks.
#pragma once

#include "ir/program.h"
#include "ops/catalog.h"
#include "passes/partition_options.h"

namespace lockstep::passes {

ir::Program partition_parameters(ir::Program program, const PartitionOptions& options, const ops::KernelCatalog& catalog);

}  // namespace lockstep::passes
