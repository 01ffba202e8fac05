// Attention by cuDNN where each sequence is one document (one_document of ops/attention.cpp), in bfloat16 and float16. The same
// bits in every run: backward sums in one order.
#pragma once

#include <vector>

#include "kernels/kernel.h"

namespace lockstep::kernels::cuda {

// What a plan of cuDNN may use, bytes; our own kernel serves what asks for more. The backward of a batch, with its sums in one
// order, keeps the gradients of all scores: heads x seq x seq of 2 bytes (cuDNN before 9.25, and on Hopper).
inline constexpr int64_t kAttentionWorkspaceBytes = int64_t{5} << 30;

const std::vector<Registered>& attention_kernels();

}  // namespace lockstep::kernels::cuda
