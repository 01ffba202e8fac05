// Muon's update of a segment of matrices (Jordan et al. 2024, as torch.optim.Muon), on flat shards.
#pragma once

#include "passes/optimizer.h"

namespace lockstep::passes {

// Appends to the unit's routine `update` what makes of a segment's gradients the update of its weights, both sharded as the
// optimizer's states are; `buffer` is its momentum. Every data rank gathers the momentum of the segment once, in the type in
// which gradients cross ranks, and every tensor-parallel rank each matrix; all orthogonalize the same matrices, and keep their
// shards.
struct MomentumOf {
    ir::TensorId gradient, buffer, control;
};
ir::TensorId orthogonal_update(ir::Routine& update, const ir::Program& program, const ir::Unit& unit, const UpdateRule& rule,
                               size_t segment, const MomentumOf& of);

}  // namespace lockstep::passes
