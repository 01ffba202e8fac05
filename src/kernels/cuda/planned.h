// What the module for NVIDIA's GPUs has, in every build: a computer without a GPU compiles the program that one will run.
#pragma once

#include "ops/catalog.h"

namespace lockstep::kernels::cuda {

inline constexpr int64_t kLossChunkTokens = 4096;

// For GPUs of that compute capability (90: Hopper), with attention as cuDNN 9.19 plans it. `origin`: the cluster file, for
// messages.
ops::KernelCatalog planned_catalog(const std::string& origin, int compute_capability);

}  // namespace lockstep::kernels::cuda
