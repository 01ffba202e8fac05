// Products of matrices by cuBLASLt: einsum, addmm, and products with a bias, GELU or its backward as their epilogue, in
// float32, bfloat16 and float16, with sums in float32. The same bits in every run: what reduces by atomics is not asked for,
// nor are the epilogues that sum up the gradient of a bias.
#pragma once

#include <vector>

#include "kernels/cuda/planned_products.h"
#include "kernels/kernel.h"

namespace lockstep::kernels::cuda {

// For GPUs of that compute capability (90: Hopper). One list a process.
const std::vector<Registered>& product_kernels(int compute_capability);

int64_t products_version();
// For the op: what cuBLASLt names, the best one by its own judgement first, no more than `most`, each in no more workspace.
std::vector<ProductAlgorithm> product_algorithms(const KernelContext& context, int64_t workspace_bytes, int most);

}  // namespace lockstep::kernels::cuda
