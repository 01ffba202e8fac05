// Compiled once per instruction set.
#include "kernels/cpu/optimizer.h"

#include <algorithm>

#include "kernels/cpu/optimizer_pieces.h"
#include "kernels/cpu/simd.h"

namespace lockstep::kernels::cpu::LOCKSTEP_ISA {

extern const Typed<AdamW> adamw;
SumOfSquares sum_of_squares;

namespace {

// The step's scalars as the element loop needs them.
struct Factors {
    explicit Factors(const AdamWStep& s)
        : grad_scale(s.grad_scale),
          keep(static_cast<float>(1 - s.lr * s.weight_decay)),
          one_minus_beta1(static_cast<float>(1 - s.beta1)),
          beta2(static_cast<float>(s.beta2)),
          one_minus_beta2(static_cast<float>(1 - s.beta2)),
          root_correction(static_cast<float>(1 / std::sqrt(s.bias_correction2))),
          eps(static_cast<float>(s.eps)),
          step_size(static_cast<float>(s.lr / s.bias_correction1)) {}
    float grad_scale, keep, one_minus_beta1, beta2, one_minus_beta2, root_correction, eps, step_size;
};

template <class T>
LOCKSTEP_INLINE void update(const Factors& f, const float* g, T* w, T* m, T* v, int64_t lanes) {
    const Vec grad = load(g, lanes) * f.grad_scale;
    const Vec first = load(m, lanes), new_first = first + (grad - first) * f.one_minus_beta1;
    const Vec new_second = load(v, lanes) * f.beta2 + grad * grad * f.one_minus_beta2;
    const Vec denominator = square_root(new_second) * f.root_correction + f.eps;
    store(w, load(w, lanes) * f.keep - new_first / denominator * f.step_size, lanes);
    store(m, new_first, lanes);
    store(v, new_second, lanes);
}

SquareSum piece_sum(const float* x, int64_t n) {
    DoubleVec total[2] = {};
    IntVec non_finite{};
    for (int64_t i = 0; i < n; i += kLanes) {
        const Vec a = load(x + i, n - i);
        for (int half = 0; half < 2; ++half) {
            const DoubleVec wide = widen(a, half);
            total[half] += wide * wide;
        }
        non_finite -= (reinterpret_cast<IntVec>(a) & 0x7f800000) == 0x7f800000;
    }
    SquareSum result;
    for (int j = 0; j < kLanes / 2; ++j) result.sum += total[0][j] + total[1][j];
    for (int j = 0; j < kLanes; ++j) result.non_finite += non_finite[j];
    return result;
}

template <class T>
void adamw_of(ThreadPool& pool, int64_t n, const AdamWStep& step, const float* g, T* w, T* m, T* v) {
    if (step.commit == 0) return;
    const Factors factors(step);
    pool.parallel([&](int thread, int threads) {
        const Range mine = split(n, threads, thread, 16);
        int64_t i = mine.begin;
        for (; i + kLanes <= mine.end; i += kLanes) update(factors, g + i, w + i, m + i, v + i, kLanes);
        if (i < mine.end) update(factors, g + i, w + i, m + i, v + i, mine.end - i);
    });
}

}  // namespace

SquareSum sum_of_squares(ThreadPool& pool, int64_t n, const float* x, void* workspace) {
    SquareSum* const pieces = static_cast<SquareSum*>(workspace);
    const int64_t count = sum_of_squares_pieces(n);
    pool.parallel([&](int thread, int threads) {
        const Range mine = split(count, threads, thread);
        for (int64_t p = mine.begin; p < mine.end; ++p)
            pieces[p] = piece_sum(x + p * kSquareSumPiece, std::min(kSquareSumPiece, n - p * kSquareSumPiece));
    });
    SquareSum total;
    for (int64_t p = 0; p < count; ++p) {
        total.sum += pieces[p].sum;
        total.non_finite += pieces[p].non_finite;
    }
    return total;
}

constinit const Typed<AdamW> adamw{adamw_of<float>, adamw_of<Bf16>};

}  // namespace lockstep::kernels::cpu::LOCKSTEP_ISA
