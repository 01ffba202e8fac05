// Requires: one forward routine a block, the last with a port `logits`.
// Produces: the forwards of every entry asked for, without dropout in all but train. In the last block of train and eval the
//   mean cross-entropy of next tokens, as a sum accumulated into the state `loss_sum` (the mean is taken by the factor inv_n,
//   known before the first backward). For train the routines `count` (once a microbatch) and `begin` (once a step), which make
//   inv_n = 1 / (valid targets of the whole step), and loss_seed, which is inv_n times the loss scale where there is one; for
//   eval `count` and `eval.total`: sum of losses and number of targets over all ranks. For any other entry nothing: logits are
//   its result.
// Leaves alone: everything else.
#pragma once

#include <optional>
#include <vector>

#include "ir/program.h"

namespace lockstep::passes {

// Backward computes the gradients of scale x loss, so that few of them are too small for float16; the optimizer divides them
// again. A dynamic scale is halved by a step whose gradients overflow, which does not count, and doubled after `window` steps
// in a row that count, as torch.amp.GradScaler does it (Micikevicius et al., 1710.03740, section 3.2).
struct LossScaling {
    double initial = 65536, least = 1;
    int64_t window = 2000;
    bool dynamic = true;
};

struct ObjectiveOptions {
    std::vector<ir::EntryKind> entries = {ir::EntryKind::Train};  // Eval: loss without backward
    std::optional<LossScaling> loss_scaling = {};
};

ir::Program attach_objective(ir::Program program, const ObjectiveOptions& options);

}  // namespace lockstep::passes
