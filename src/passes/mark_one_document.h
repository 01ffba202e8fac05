// Requires: placed routines; a loader that gives each sequence as one document, with positions that count from 0.
// Produces: one_document = 1 (ops/attention.cpp) on attention, forward and backward, of training and evaluation; head_tail, too,
//   if its queries are divided over ranks in that order (mesh/order.h).
// Leaves alone: prefill and decode, whose keys are in a cache.
#pragma once

#include "ir/program.h"

namespace lockstep::passes {

ir::Program mark_one_document(ir::Program program);

// Produces: any_order = 1 on the backward of attention, whose sums may then be in another order in each run.
ir::Program allow_any_order(ir::Program program);

}  // namespace lockstep::passes
