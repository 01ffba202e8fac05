// Products of matrices by cuBLASLt: einsum and addmm in float32, bfloat16 and float16, with sums in float32. The same bits in
// every run: what reduces by atomics is not asked for.
#pragma once

#include <vector>

#include "kernels/kernel.h"

namespace lockstep::kernels::cuda {

// What cuBLASLt may use in a product, bytes: as NVIDIA recommends for Hopper (cublasSetWorkspace in its documentation).
inline constexpr int64_t kProductWorkspaceBytes = int64_t{32} << 20;

const std::vector<Registered>& product_kernels();

}  // namespace lockstep::kernels::cuda
