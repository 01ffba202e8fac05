// Products of matrices by cuBLASLt: einsum and addmm in float32, bfloat16 and float16, with sums in float32. The same bits in
// every run: what reduces by atomics is not asked for.
#pragma once

#include <vector>

#include "kernels/kernel.h"

namespace lockstep::kernels::cuda {

const std::vector<Registered>& product_kernels();

}  // namespace lockstep::kernels::cuda
