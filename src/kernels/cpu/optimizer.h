// Updates of a flat segment of parameters, and the sum of squares for gradient clipping.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "kernels/cpu/typed.h"

namespace lockstep::kernels::cpu {

struct AdamWStep {
    double lr = 0, beta1 = 0, beta2 = 0, eps = 0, weight_decay = 0;
    double bias_correction1 = 1, bias_correction2 = 1;  // 1 - beta1^step, 1 - beta2^step
    float grad_scale = 1;                               // multiplies the gradient: the clip coefficient
    int commit = 1;                                     // 0: the step is skipped and nothing changes
    float l2 = 0;                                       // this share of the weights is added to the gradient: torch.optim.Adam
};

// PyTorch's order: w -= lr * wd * w; m += (1 - beta1) * (g - m); v = beta2 * v + (1 - beta2) * g * g;
// w -= lr / bias_correction1 * m / (sqrt(v) / sqrt(bias_correction2) + eps). All of n elements, updated in place.
template <class T>
using AdamW = void(ThreadPool& pool, int64_t n, const AdamWStep& step, const float* g, T* w, T* m, T* v);
extern Typed<AdamW> adamw;

struct MomentumStep {
    float lr = 0, momentum = 0, l2 = 0;
    float grad_scale = 1;  // as above
    bool nesterov = false;
};
// g += l2 w; b = momentum b + g; w -= lr (nesterov ? g + momentum b : b). Without a buffer b (nullptr) w -= lr g.
template <class T>
using Sgd = void(ThreadPool& pool, int64_t n, const MomentumStep& step, const float* g, T* w, T* b);
extern Typed<Sgd> sgd;
// b += (1 - momentum) (g - b); u = nesterov ? g + momentum (b - g) : b.
template <class T>
using MuonMomentum = void(ThreadPool& pool, int64_t n, const MomentumStep& step, const float* g, float* u, T* b);
extern Typed<MuonMomentum> muon_momentum;
// w = keep w - lr o.
template <class T>
using Muon = void(ThreadPool& pool, int64_t n, float keep, float lr, const float* o, T* w);
extern Typed<Muon> muon;

// g = scale (anchor - w).
template <class T>
using OuterGradient = void(ThreadPool& pool, int64_t n, float scale, const T* anchor, const T* w, float* g);
extern Typed<OuterGradient> outer_gradient;
// As Sgd of the anchor; then w = anchor + alpha (w - anchor).
template <class T>
using OuterSgd = void(ThreadPool& pool, int64_t n, const MomentumStep& step, float alpha, const float* g, T* w, T* anchor, T* b);
extern Typed<OuterSgd> outer_sgd;

struct SquareSum {
    double sum = 0;          // inf or NaN where a square is
    int64_t non_finite = 0;  // elements that are inf or NaN
};

// Summed in double over fixed pieces in a fixed order: the same bits for any number of threads. `workspace` holds
// sum_of_squares_workspace_bytes(n).
using SumOfSquares = SquareSum(ThreadPool& pool, int64_t n, const float* x, void* workspace);
extern SumOfSquares* sum_of_squares;
int64_t sum_of_squares_workspace_bytes(int64_t n);

}  // namespace lockstep::kernels::cpu
