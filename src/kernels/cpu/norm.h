// RMSNorm over the last dim: y = x * rstd * w, rstd = 1 / sqrt(mean(x^2) + eps). Serves the norm of hidden states
// (rows = tokens) and of heads (rows = tokens * heads). Sums over n are in float with a fixed order.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "kernels/cpu/typed.h"

namespace lockstep::kernels::cpu {

// x, y: [rows, n]; w: [n]; rstd: [rows]. y may alias x.
template <class T>
using RmsNorm = void(ThreadPool& pool, int64_t rows, int64_t n, const T* x, const T* w, float eps, T* y, float* rstd);
extern const Typed<RmsNorm> rms_norm;

// dw: [n], replaced or added to; dx may alias dy. Each thread sums dw over its rows into `workspace`
// (rms_norm_backward_workspace_bytes, 64-byte aligned), then the sums are added in the order of the threads.
template <class T>
using RmsNormBackward = void(ThreadPool& pool, int64_t rows, int64_t n, const T* dy, const T* x, const T* w, const float* rstd,
                             T* dx, float* dw, bool accumulate_dw, void* workspace);
extern const Typed<RmsNormBackward> rms_norm_backward;
int64_t rms_norm_backward_workspace_bytes(int64_t n, int threads);

}  // namespace lockstep::kernels::cpu
