// Requires: final routines of blocks, their kernels chosen; parameters not yet in units.
// Produces: one program for each pipeline rank. Each has the blocks of its stages, under the model's numbers, and at every cut
//   the routines that send or receive what crosses it: activations behind a block's forward, gradients before its backward.
//   All ranks keep the counting of targets; the rank of the last block keeps the loss and an evaluation's totals.
//   Parameters that several blocks read are marked `shared`; one whose blocks are on several pipeline ranks is on each of them:
//   the rank of its own block owns it, the others mirror it (Parameter::holders).
// Leaves alone: the routines of blocks. With one stage the program is the same as before, but for that mark.
// Source: pipeline parallelism as in GPipe (arXiv 1811.06965) and Megatron-LM (2104.04473).
#pragma once

#include <optional>
#include <vector>

#include "ir/program.h"
#include "ops/catalog.h"

namespace lockstep::passes {

struct Cut {
    std::vector<std::vector<ir::BlockInstance>> stages;  // in the order of the model; together all of its blocks
    std::vector<int64_t> rank_of;                        // pipeline rank of each stage
};

// `only_rank`: only the program of this pipeline rank.
std::vector<ir::Program> assign_stages(ir::Program whole, const Cut& cut, const ops::KernelCatalog& catalog,
                                       std::optional<int64_t> only_rank = {});

}  // namespace lockstep::passes
