// Attention by cuDNN where each sequence is one document (one_document of ops/attention.cpp), in bfloat16 and float16: whole, or of
// queries that are divided over ranks, with gathered keys or in blocks of a ring. The same bits in every run: backward sums in one
// order.
#pragma once

#include <vector>

#include "kernels/kernel.h"

namespace lockstep::kernels::cuda {

const std::vector<Registered>& attention_kernels();

}  // namespace lockstep::kernels::cuda
