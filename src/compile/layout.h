// From a recipe's degrees and batch sizes to the numbers that the passes need. Every refusal names the key to change.
#pragma once

#include "compile/recipe.h"
#include "mesh/mesh.h"
#include "passes/attach_objective.h"
#include "passes/partition_parameters.h"
#include "passes/schedule.h"
#include "passes/set_precision.h"

namespace lockstep::compile {

struct Layout {
    mesh::Mesh mesh;
    int64_t ranks = 1, data_ranks = 1;
    int64_t local_batch = 1;   // sequences of a microbatch on one data rank
    int64_t global_batch = 1;  // sequences of a step that count; the rest of the last microbatch is masked
    int64_t microbatches = 1;
    int64_t seq_len = 1;
    bool sequence_parallel = true;
    passes::PrecisionOptions precision;
    std::optional<passes::LossScaling> loss_scaling;
    passes::PartitionOptions partition;
    passes::ReduceGradients reduce_gradients = passes::ReduceGradients::EachMicrobatch;
    int64_t resident_stages = 0;  // see passes/schedule.h
};

Layout layout_of(const Recipe& recipe);

}  // namespace lockstep::compile
