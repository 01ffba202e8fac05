// RMSNorm over the last dim: y = x * rstd * w, rstd = 1 / sqrt(mean(x^2) + eps). Serves the norm of hidden states
// (rows = tokens) and of heads (rows = tokens * heads). Sums over n are in float with a fixed order.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"

namespace lockstep::kernels::cpu {

// x, y: [rows, n]; w: [n]; rstd: [rows]. y may alias x.
using RmsNorm = void(ThreadPool& pool, int64_t rows, int64_t n, const float* x, const float* w, float eps, float* y, float* rstd);
extern RmsNorm* const rms_norm;

// dw: [n], replaced or added to; dx may alias dy. Each thread sums dw over its rows into `workspace`
// (rms_norm_backward_workspace_bytes, 64-byte aligned), then the sums are added in the order of the threads.
using RmsNormBackward = void(ThreadPool& pool, int64_t rows, int64_t n, const float* dy, const float* x, const float* w,
                             const float* rstd, float* dx, float* dw, bool accumulate_dw, void* workspace);
extern RmsNormBackward* const rms_norm_backward;
int64_t rms_norm_backward_workspace_bytes(int64_t n, int threads);

}  // namespace lockstep::kernels::cpu
