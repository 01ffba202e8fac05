// Requires: placed forward and backward routines; parameters still logical.
// Produces: with `full`, a backward of every block that stands more than once (the transformer layers) which reads only the
//   block's input, its parameters and d.y: the forward's ops are cloned in front, dead ones dropped (the block's last product
//   and reduce-scatter), reshards of the same value shared with backward (Chen et al. 2016, arXiv 1604.06174; collectives are
//   run again as in Megatron-LM's full recompute).
// Leaves alone: forwards, but for their frame; embedding and head.
#pragma once

#include "ir/program.h"

namespace lockstep::passes {

struct RecomputeOptions {
    bool full = false;
};

ir::Program recompute(ir::Program program, const RecomputeOptions& options);

}  // namespace lockstep::passes
