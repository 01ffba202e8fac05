// The updates of optimizers and the sum of squares of gradients. Formulas as in kernels/cpu/optimizer.h. The scalars of the
// step (kernels/step_control.h) are read where they are on the device, so that nobody waits for them.
#pragma once

#include "kernels/element_draws.h"
#include "kernels/gpu/types.h"
#include "kernels/optimizer_step.h"

namespace lockstep::kernels::gpu {

// All of n elements; w, m and v in place. control: [StepControl::kValues]; without its commit nothing changes.
// narrow: null, or where the new w go, too.
template <class S, class T>
void adamw(Stream stream, int64_t n, const AdamStep& step, const double* control, const float* g, S* w, S* m, S* v, T* narrow);

// The same with moments in bfloat16: m is rounded to nearest and v at random.
template <class T>
void adamw_of_narrow_moments(Stream stream, int64_t n, const AdamStep& step, const double* control,
                             const MomentRounding& rounding, const float* g, float* w, Bf16* m, Bf16* v, T* narrow);

// b: what is remembered, or nullptr.
template <class T>
void sgd(Stream stream, int64_t n, const MomentumStep& step, const double* control, const float* g, T* w, T* b);
// Without the step's commit u is 0.
template <class T>
void muon_momentum(Stream stream, int64_t n, const MomentumStep& step, const double* control, const float* g, float* u, T* b);
template <class T>
void muon(Stream stream, int64_t n, double weight_decay, const double* control, const float* o, T* w);

template <class T>
void outer_gradient(Stream stream, int64_t n, float scale, const T* anchor, const T* w, float* g);
template <class T>
void outer_sgd(Stream stream, int64_t n, const MomentumStep& step, float lr, float alpha, const float* g, T* w, T* anchor, T* b);

// total = or += the sum of x^2, in double. sums: sum_of_squares_workspace_bytes. counts: whether this rank's elements count; 0
// else.
void sum_of_squares(Stream stream, int64_t n, const float* x, bool counts, bool adds, double* total, double* sums);
// A block makes one sum of kSquaresPerBlock elements.
// Where that makes more than kMostSumsOfSquares sums, it takes more elements.
inline constexpr int64_t kSquaresPerBlock = 16 * 1024, kMostSumsOfSquares = 1024;
inline int64_t sums_of_squares(int64_t n) {
    const int64_t blocks = (n + kSquaresPerBlock - 1) / kSquaresPerBlock;
    return blocks < kMostSumsOfSquares ? blocks : kMostSumsOfSquares;
}
inline int64_t sum_of_squares_workspace_bytes(int64_t n) { return sums_of_squares(n) * static_cast<int64_t>(sizeof(double)); }

}  // namespace lockstep::kernels::gpu
