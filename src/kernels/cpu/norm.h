// Norms over the last dim. RMSNorm: y = x * rstd * w, rstd = 1 / sqrt(mean(x^2) + eps). Serves the norm of hidden states
// (rows = tokens) and of heads (rows = tokens * heads). Sums over n are in float with a fixed order. S: how what is normed is
// stored, and its gradients; T: what leaves the norm; W: its weights (typed.h).
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "kernels/cpu/typed.h"

namespace lockstep::kernels::cpu {

// x, y: [rows, n]; w: [n]; rstd: [rows]. y may alias x of its type.
template <class S, class T, class W>
using RmsNorm = void(ThreadPool& pool, int64_t rows, int64_t n, const S* x, const W* w, float eps, T* y, float* rstd);
extern TypedNorm<RmsNorm> rms_norm;

// The norm of s = x + residual, [rows, n] too; s may alias either.
template <class S, class T, class W>
using AddRmsNorm = void(ThreadPool& pool, int64_t rows, int64_t n, const S* x, const S* residual, const W* w, float eps, S* s,
                        T* y, float* rstd);
extern TypedNorm<AddRmsNorm> add_rms_norm;

// dw: [n], replaced or added to; dx may alias dy. also: [rows, n], added to dx, or nullptr; dx may alias it. Each thread sums
// dw over its rows into `workspace` (rms_norm_backward_workspace_bytes, 64-byte aligned), then the sums are added in the order
// of the threads.
template <class S, class W>
using RmsNormBackward = void(ThreadPool& pool, int64_t rows, int64_t n, const S* dy, const S* x, const W* w, const float* rstd,
                             const S* also, S* dx, float* dw, bool accumulate_dw, void* workspace);
extern TypedNormBackward<RmsNormBackward> rms_norm_backward;
int64_t rms_norm_backward_workspace_bytes(int64_t n, int threads);

// y = (x - mean) * rstd * w + b, rstd = 1 / sqrt(mean((x - mean)^2) + eps). b: [n]; mean, rstd: [rows]. y may alias x of its
// type.
template <class S, class T, class W>
using LayerNorm = void(ThreadPool& pool, int64_t rows, int64_t n, const S* x, const W* w, const W* b, float eps, T* y,
                       float* mean, float* rstd);
extern TypedNorm<LayerNorm> layer_norm;

// dw: [n], replaced or added to; db: [n], replaced. Summed like rms_norm_backward's.
template <class S, class W>
using LayerNormBackward = void(ThreadPool& pool, int64_t rows, int64_t n, const S* dy, const S* x, const W* w, const float* mean,
                               const float* rstd, const S* also, S* dx, float* dw, bool accumulate_dw, float* db,
                               void* workspace);
extern TypedNormBackward<LayerNormBackward> layer_norm_backward;
int64_t layer_norm_backward_workspace_bytes(int64_t n, int threads);

}  // namespace lockstep::kernels::cpu
