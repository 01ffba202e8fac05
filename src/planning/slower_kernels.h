// Kernels of a compiled program that serve in place of faster ones, with the reason: what makes a small change of a recipe cost
// much more than its share.
#pragma once

#include <string>
#include <vector>

#include "planning/plan.h"

namespace lockstep::planning {

struct SlowerKernel {
    std::string op, kernel, faster;  // "attention_backward", "gpu.attention_backward", "cudnn.attention_backward"
    std::string why;                 // the faster one does not serve
};
// One for each op, kernel and reason; none of a plan in another software than Lockstep. Of a catalog's kernels for an op the
// first are the fastest (ops/catalog.h).
std::vector<SlowerKernel> slower_kernels(const Plan& plan);
// "gpu.attention_backward serves in place of cudnn.attention_backward, which is faster: ..."
std::string text_of(const SlowerKernel& kernel);

}  // namespace lockstep::planning
