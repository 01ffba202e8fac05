// RMSNorm and LayerNorm over the last dim, forward and backward, with the sum before or after. Shapes and formulas as in
// kernels/cpu/norm.h; sums over n in float, those over rows in one order whatever the device. S: how what is normed is stored,
// and its gradients; T: what leaves the norm; W: its weights.
#pragma once

#include "kernels/gpu/columns.h"

namespace lockstep::kernels::gpu {

// The norm of s = x + residual, or, without a residual, of x (s is not written). y = (x - mean) rstd w + b; RMSNorm has neither a
// mean nor b. x, residual, s, y: [rows, n]; w, b: [n]; mean, rstd: [rows]. s may alias x or residual, y what is of its type.
template <class S, class T, class W>
struct Norm {
    const S *x, *residual;
    const W *w, *b;
    float eps;
    S* s;
    T* y;
    float *mean, *rstd;
};
template <class S, class T, class W>
void rms_norm(Stream stream, int64_t rows, int64_t n, const Norm<S, T, W>& norm);
template <class S, class T, class W>
void layer_norm(Stream stream, int64_t rows, int64_t n, const Norm<S, T, W>& norm);

// dx: [rows, n], may alias dy or also; also: added to dx, or nullptr. dw, db: [n]; dw is replaced or added to, db replaced.
// sums: norm_backward_workspace_bytes.
template <class S, class W>
struct NormBackward {
    const S *dy, *x;
    const W* w;
    const float *mean, *rstd;
    const S* also;
    S* dx;
    float *dw, *db;
    bool adds_dw;
    float* sums;
};
template <class S, class W>
void rms_norm_backward(Stream stream, int64_t rows, int64_t n, const NormBackward<S, W>& norm);
template <class S, class W>
void layer_norm_backward(Stream stream, int64_t rows, int64_t n, const NormBackward<S, W>& norm);

// sums: 1 for dw, 2 for db too.
inline int64_t norm_backward_workspace_bytes(int64_t rows, int64_t n, int sums) {
    return sums * sum_rows_workspace_bytes(rows, n);
}

}  // namespace lockstep::kernels::gpu
