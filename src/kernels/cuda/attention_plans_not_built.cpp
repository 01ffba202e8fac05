// Where cuDNN's headers are not.
#include "kernels/cuda/attention_plans.h"

namespace lockstep::kernels::cuda {

std::string cudnn_text() { return "no cuDNN"; }
bool has_cudnn() { return false; }
PlanOrRefusal attention_plan(const AttentionProblem&) { return {nullptr, "built without cuDNN"}; }
PlanOrRefusal attention_plan_for(const AttentionProblem&, const DescribedDevice&) { return {nullptr, "built without cuDNN"}; }

}  // namespace lockstep::kernels::cuda
