// oneDNN's sgemm on one thread, as the other candidate for a matrix product. It allocates its own packing buffers.
#pragma once

#include "kernels/cpu/matmul.h"

namespace lockstep::kernels::cpu {

// False in a build without oneDNN; then onednn_matmul throws InternalError.
bool onednn_is_built();

// Leading dimensions must be given. Runs inline on the calling thread.
void onednn_matmul(const MatmulShape& shape, const float* a, const float* b, float* c, bool accumulate);

}  // namespace lockstep::kernels::cpu
