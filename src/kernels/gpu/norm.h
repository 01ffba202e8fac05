// RMSNorm and LayerNorm over the last dim, forward and backward, with the sum before or after. Shapes and formulas as in
// kernels/cpu/norm.h; sums over n in float, those over rows in one order whatever the device. S: how what is normed is stored,
// and its gradients; T: what leaves the norm; W: its weights.
#pragma once

#include "kernels/gpu/columns.h"

namespace lockstep::kernels::gpu {

template <class S, class T, class W>
void rms_norm(Stream stream, int64_t rows, int64_t n, const S* x, const W* w, float eps, T* y, float* rstd);
template <class S, class T, class W>
void add_rms_norm(Stream stream, int64_t rows, int64_t n, const S* x, const S* residual, const W* w, float eps, S* s, T* y,
                  float* rstd);
template <class S, class T, class W>
void layer_norm(Stream stream, int64_t rows, int64_t n, const S* x, const W* w, const W* b, float eps, T* y, float* mean,
                float* rstd);

// workspace: norm_backward_workspace_bytes.
template <class S, class W>
void rms_norm_backward(Stream stream, int64_t rows, int64_t n, const S* dy, const S* x, const W* w, const float* rstd,
                       const S* also, S* dx, float* dw, bool adds_dw, void* workspace);
template <class S, class W>
void layer_norm_backward(Stream stream, int64_t rows, int64_t n, const S* dy, const S* x, const W* w, const float* mean,
                         const float* rstd, const S* also, S* dx, float* dw, bool adds_dw, float* db, void* workspace);
// sums: 1 for dw, 2 for db too.
inline int64_t norm_backward_workspace_bytes(int64_t rows, int64_t n, int sums) {
    return sums * sum_rows_workspace_bytes(rows, n);
}

}  // namespace lockstep::kernels::gpu
