// Requires: one forward routine a block, the last with a port `logits`.
// Produces: the forwards of every entry asked for, without dropout in all but train. In the last block of train and eval the mean
//   cross-entropy of next tokens, as a sum accumulated into the state `loss_sum` (the mean is taken by the factor inv_n, known
//   before the first backward). For train the routines `count` (once a microbatch) and `begin` (once a step), which make
//   inv_n = 1 / (valid targets of the whole step); for eval `count` and `eval.total`: sum of losses and number of targets over
//   all ranks. For any other entry nothing: logits are its result.
// Leaves alone: everything else.
#pragma once

#include <vector>

#include "ir/program.h"

namespace lockstep::passes {

struct ObjectiveOptions {
    std::vector<ir::EntryKind> entries = {ir::EntryKind::Train};  // Eval: loss without backward
};

ir::Program attach_objective(ir::Program program, const ObjectiveOptions& options);

}  // namespace lockstep::passes
