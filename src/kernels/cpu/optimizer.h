// Updates of a flat segment of parameters, and the sum of squares for gradient clipping.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "kernels/cpu/typed.h"
#include "kernels/element_draws.h"
#include "kernels/optimizer_step.h"

namespace lockstep::kernels::cpu {

// control: the scalars of the step, [StepControl::kValues]. Without its commit nothing changes. Its clip multiplies gradients.

// PyTorch's order: w -= lr * wd * w; m += (1 - beta1) * (g - m); v = beta2 * v + (1 - beta2) * g * g;
// w -= lr / bias_correction1 * m / (sqrt(v) / sqrt(bias_correction2) + eps). All of n elements, updated in place.
// narrow: null, or where the new w go, too.
template <class S, class T>
using AdamW = void(ThreadPool& pool, int64_t n, const AdamStep& step, const double* control, const float* g, S* w, S* m, S* v,
                   T* narrow);
extern TypedOnStream<AdamW> adamw;

// The same with moments in bfloat16: m is rounded to nearest and v at random. T: of narrow.
template <class T>
using AdamWOfNarrowMoments = void(ThreadPool& pool, int64_t n, const AdamStep& step, const double* control,
                                  const MomentRounding& rounding, const float* g, float* w, Bf16* m, Bf16* v, T* narrow);
extern Typed<AdamWOfNarrowMoments> adamw_of_narrow_moments;

// g += l2 w; b = momentum b + g; w -= lr (nesterov ? g + momentum b : b). Without a buffer b (nullptr) w -= lr g.
template <class T>
using Sgd = void(ThreadPool& pool, int64_t n, const MomentumStep& step, const double* control, const float* g, T* w, T* b);
extern Typed<Sgd> sgd;
// b += (1 - momentum) (g - b); u = nesterov ? g + momentum (b - g) : b. Without the step's commit u is 0.
template <class T>
using MuonMomentum = void(ThreadPool& pool, int64_t n, const MomentumStep& step, const double* control, const float* g, float* u,
                          T* b);
extern Typed<MuonMomentum> muon_momentum;
// w = (1 - lr weight_decay) w - lr o.
template <class T>
using Muon = void(ThreadPool& pool, int64_t n, double weight_decay, const double* control, const float* o, T* w);
extern Typed<Muon> muon;

// g = scale (anchor - w).
template <class T>
using OuterGradient = void(ThreadPool& pool, int64_t n, float scale, const T* anchor, const T* w, float* g);
extern Typed<OuterGradient> outer_gradient;
// As Sgd of the anchor, without a control; then w = anchor + alpha (w - anchor).
template <class T>
using OuterSgd = void(ThreadPool& pool, int64_t n, const MomentumStep& step, float lr, float alpha, const float* g, T* w,
                      T* anchor, T* b);
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
