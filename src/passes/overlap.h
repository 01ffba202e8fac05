// Requires: the calls of every entry in program order.
// Produces: a queue on every call (gathers and reductions of units: comm; collectives of layers in parts: tensor; transfers:
//   pipeline), gathers moved `prefetch` units ahead, and waits between the queues:
//   - for every value that crosses them;
//   - of a communication call for the computation before it in the list, so that it never runs ahead of its place;
//   - of a backward for the reductions of gradients more than `prefetch` units back, so that their full-size gradients are not
//     all held at once. At least one reduction may run at the same time.
//   The order of the list is each rank's total launch order of communication.
// Leaves alone: what is called and with what.
#pragma once

#include <algorithm>
#include <vector>

#include "ir/program.h"

namespace lockstep::passes {

struct OverlapOptions {
    int64_t prefetch = 1;  // units gathered ahead of the one in use; 0: none
};

// By routine. A gather that only casts, and a reduction without other ranks, are computation.
std::vector<QueueName> queues_of(const ir::Program& program);
// With gathers `prefetch` units ahead, the `gather`-th is given in front of what follows this one.
inline size_t given_before_use_of(size_t gather, int64_t prefetch) {
    return gather - std::min(gather, static_cast<size_t>(prefetch));
}

ir::Program overlap(ir::Program program, const OverlapOptions& options);

}  // namespace lockstep::passes
