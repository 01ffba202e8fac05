// What partition_parameters and the files that it is made of are asked for.
#pragma once

#include <cstdint>
#include <optional>

#include "base/dtype.h"
#include "passes/optimizer.h"

namespace lockstep::passes {

// How islands meet: DiLoCo (arXiv 2311.08105), in fragments (2501.18512). With lr 1 and without momentum weights become the
// mean (local SGD, arXiv 1805.09767).
struct OuterOptions {
    double lr = 0.7, momentum = 0.9;  // of an SGD with Nesterov's momentum on the mean of what islands have changed
    double alpha = 0;                 // the share of its own weights that an island keeps
    bool quantized = false;           // what they have changed crosses islands as int8
    int64_t fragments = 1;            // parts of the model that meet at different steps
    int64_t islands = 2;
    bool are_jobs = false;  // of their own, apart from this one; else they are an axis of the mesh
};

struct PartitionOptions {
    int64_t weights = 1, gradients = 1, states = 1;  // over how many data ranks each is split; divisors, ascending
    int64_t secondary = 0;                           // so the copy of an entry; a divisor of `weights`. 0: there is none
    Optimizer optimizer = optimizer_called({});
    double max_norm = 1.0;        // 0: no clipping
    double least_loss_scale = 1;  // of a dynamic one
    // Element types of parameters in forward and backward, of the optimizer's weights and moments, and of gradients between
    // ranks. Where weights are split as the optimizer is, they are kept only in `master` and `gather` casts them, unless they
    // are kept in the parameters' type, too; else such a copy is kept in any case. `update` makes it from the master weights.
    Dtype compute = Dtype::F32, master = Dtype::F32, reduce = Dtype::F32;
    bool keeps_narrow = false;
    // Bits of an element of what gathers and fetches carry, and of gradients, which are exchanged so and added up in the type
    // of their sums, over one sub-axis after the other (qwZ and qgZ of arXiv 2306.10209): 8, 4, or 0, which is as they are.
    int64_t quantized_weights = 0, quantized_gradients = 0;
    bool round_at_random = false;       // quantized gradients
    std::optional<OuterOptions> outer;  // where the mesh has islands
    int64_t pad_elements = 16;          // segments are padded to a multiple of optimizer x this
    bool snapshot = false;
    bool reduces_into = true;  // whether reductions add to their results, or an op after them
};

}  // namespace lockstep::passes
