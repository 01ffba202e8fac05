// Requires: one forward routine a block, the last with a port `logits`.
// Produces: in that block the mean cross-entropy of next tokens, as a sum accumulated into the scalar `loss_sum` (the mean is
//   taken by the factor inv_n, known before the first backward); the routines `count` (once a microbatch) and `begin`
//   (once a step), which make inv_n = 1 / (valid targets of the whole step). With `eval`, the forwards again for the entry eval,
//   and its `eval.total`: sum of losses and number of targets over all ranks.
// Leaves alone: everything else.
#pragma once

#include "ir/program.h"

namespace lockstep::passes {

struct ObjectiveOptions {
    bool eval = false;  // the program also gets an entry `eval`: loss without backward
};

ir::Program attach_objective(ir::Program program, const ObjectiveOptions& options);

}  // namespace lockstep::passes
