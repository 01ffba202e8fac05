// Products of matrices by cuBLASLt: einsum, addmm, and products with a bias, GELU or its backward as their epilogue, in
// float32, bfloat16 and float16, with sums in float32. The same bits in every run: what reduces by atomics is not asked for,
// nor are the epilogues that sum up the gradient of a bias.
#pragma once

#include <vector>

#include "kernels/kernel.h"

namespace lockstep::kernels::cuda {

// For GPUs of that compute capability (90: Hopper). One list a process.
const std::vector<Registered>& product_kernels(int compute_capability);

}  // namespace lockstep::kernels::cuda
