// Requires: dtypes; routines and parameters over global dims without placements.
// Produces: a placement on every tensor, the collectives that bring operands where an op runs, and the reductions of partial
//   sums. One generic rule serves every op, backward included:
//   - an op runs where the table places its iteration space; a result is partial over the sub-axes that it lost;
//   - one reshard per (value, placement) in a routine, a value is reduced at most once, and only values at rest cross routines;
//     a saved value crosses in the whole placement, no larger than at rest, that backward wants most;
//   - a partial sum passes through an op that is linear in it where every path of the result ends in an accumulator or in an
//     add that reduces over that sub-axis anyway; an n-ary add sums equally placed terms as they are;
//   - loader inputs are bound in every placement asked for, without communication;
//   - sub-axes that go from the end of a dim to the end of another are exchanged by an all_to_all.
// In a ring, attention has its ranks as group, and kv_seq is aligned with seq. Prefill and decode have the whole sequence on each
// context rank. In a routine whose seq is not divisible by tp (decode: one token), seq takes no tp.
// Leaves alone: which ops there are.
// Megatron-LM's tensor and sequence parallelism (arXiv 1909.08053, 2205.05198) and the vocabulary-parallel embedding and loss
// are outcomes of it; so are the collectives of backward.
#pragma once

#include "ir/program.h"
#include "passes/sharding_table.h"

namespace lockstep::passes {

struct ShardOptions {
    bool sequence_parallel = true;
    ContextOptions context = {};
};

ir::Program shard(ir::Program program, const ShardOptions& options);

}  // namespace lockstep::passes
