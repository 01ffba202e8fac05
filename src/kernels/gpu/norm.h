// RMSNorm and LayerNorm over the last dim, forward and backward, with the sum before or after. Shapes and formulas as in
// kernels/cpu/norm.h; sums over n in float, those over rows in one order whatever the device. S: how what is normed is stored,
// and its gradients; T: what leaves the norm; W: its weights.
#pragma once

#include "kernels/gpu/float8.h"
#include "kernels/gpu/types.h"

namespace lockstep::kernels::gpu {

template <class S, class T, class W>
void rms_norm(Stream stream, int64_t rows, int64_t n, const S* x, const W* w, float eps, T* y, float* rstd);
template <class S, class T, class W>
void add_rms_norm(Stream stream, int64_t rows, int64_t n, const S* x, const S* residual, const W* w, float eps, S* s, T* y,
                  float* rstd);
template <class S, class T, class W>
void layer_norm(Stream stream, int64_t rows, int64_t n, const S* x, const W* w, const W* b, float eps, T* y, float* mean,
                float* rstd);
// And the largest sizes of y, as amax() of float8.h raises them. groups: of y, whose runs are of whole rows. Without a residual it is
// rms_norm, and s is not written.
template <class S, class T, class W>
void rms_norm_amax(Stream stream, int64_t rows, int64_t n, const S* x, const S* residual, const W* w, float eps, S* s, T* y,
                   float* rstd, const Grouping& groups, float* amax);

// workspace: norm_backward_workspace_bytes of S.
template <class S, class W>
void rms_norm_backward(Stream stream, int64_t rows, int64_t n, const S* dy, const S* x, const W* w, const float* rstd,
                       const S* also, S* dx, float* dw, bool adds_dw, void* workspace);
template <class S, class W>
void layer_norm_backward(Stream stream, int64_t rows, int64_t n, const S* dy, const S* x, const W* w, const float* mean,
                         const float* rstd, const S* also, S* dx, float* dw, bool adds_dw, float* db, void* workspace);

// Blocks of the backward of rows of n elements in `bytes` each: as many as are in the processors at once, by the registers that
// they need. sums: 1 for dw, 2 for db too.
constexpr int blocks_of_norm_backward(int64_t n, int sums, size_t bytes) {
    if (n > 256 && n <= 1024) return 4 * kProcessors;
    if (n <= 2048) return (bytes == 4 ? 2 : sums == 2 ? 3 : 4) * kProcessors;
    if (n <= 4096) return (bytes == 4 ? 1 : 2) * kProcessors;
    return (bytes == 2 && n <= 8192 ? 1 : 2) * kProcessors;
}
// Each block adds up its rows; of short ones it has eight at once.
inline int64_t norm_backward_sums(int64_t rows, int64_t n, int sums, size_t bytes) {
    const int64_t wanted = n <= 256 ? (rows + 7) / 8 : rows, most = blocks_of_norm_backward(n, sums, bytes);
    return wanted < most ? wanted : most;
}
inline int64_t norm_backward_workspace_bytes(int64_t rows, int64_t n, int sums, size_t bytes) {
    return sums * norm_backward_sums(rows, n, sums, bytes) * n * static_cast<int64_t>(sizeof(float));
}

}  // namespace lockstep::kernels::gpu
