// Compiled once per instruction set.
#include "kernels/cpu/optimizer.h"

#include <algorithm>

#include "kernels/cpu/dropout_bits.h"
#include "kernels/cpu/for_each_vector.h"
#include "kernels/cpu/optimizer_pieces.h"
#include "kernels/cpu/simd.h"
#include "kernels/step_control.h"

namespace lockstep::kernels::cpu::LOCKSTEP_ISA {

extern const TypedOnStream<AdamW> adamw;
extern const Typed<AdamWOfNarrowMoments> adamw_of_narrow_moments;
extern const Typed<Sgd> sgd;
extern const Typed<MuonMomentum> muon_momentum;
extern const Typed<Muon> muon;
extern const Typed<OuterGradient> outer_gradient;
extern const Typed<OuterSgd> outer_sgd;
SumOfSquares sum_of_squares;

namespace {

// The step's scalars as the element loop needs them.
struct Factors {
    Factors(const AdamStep& s, const StepControl& now)
        : grad_scale(static_cast<float>(now.clip)),
          keep(static_cast<float>(1 - now.lr * s.weight_decay)),
          one_minus_beta1(static_cast<float>(1 - s.beta1)),
          beta2(static_cast<float>(s.beta2)),
          one_minus_beta2(static_cast<float>(1 - s.beta2)),
          root_correction(static_cast<float>(1 / std::sqrt(now.bias_correction2))),
          eps(static_cast<float>(s.eps)),
          step_size(static_cast<float>(now.lr / now.bias_correction1)),
          l2(s.l2) {}
    float grad_scale, keep, one_minus_beta1, beta2, one_minus_beta2, root_correction, eps, step_size, l2;
};

// Gives the second moment, which it leaves as it was.
template <bool kCoupled, class S, class M, class T>
LOCKSTEP_INLINE Vec update(const Factors& f, const float* g, S* w, M* m, const M* v, T* narrow, int64_t lanes) {
    Vec grad = load(g, lanes) * f.grad_scale;
    if constexpr (kCoupled) grad += load(w, lanes) * f.l2;
    const Vec first = load(m, lanes), new_first = first + (grad - first) * f.one_minus_beta1;
    const Vec new_second = load(v, lanes) * f.beta2 + grad * grad * f.one_minus_beta2;
    const Vec denominator = square_root(new_second) * f.root_correction + f.eps;
    const Vec updated = load(w, lanes) * f.keep - new_first / denominator * f.step_size;
    store(w, updated, lanes);
    if (narrow) store(narrow, updated, lanes);
    store(m, new_first, lanes);
    return new_second;
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

template <bool kCoupled, class S, class T>
void adam_loop(ThreadPool& pool, int64_t n, const Factors& factors, const float* g, S* w, S* m, S* v, T* narrow) {
    for_each_vector(pool, n, [=](int64_t i, int64_t lanes) {
        store(v + i, update<kCoupled>(factors, g + i, w + i, m + i, v + i, narrow ? narrow + i : nullptr, lanes), lanes);
    });
}

template <bool kCoupled, class T>
void adam_loop(ThreadPool& pool, int64_t n, const Factors& factors, const MomentRounding& how, const float* g, float* w, Bf16* m,
               Bf16* v, T* narrow) {
    const uint32_t noise = rounding_noise(how.draws->seed, *how.steps);
    pool.parallel([=, &how](int thread, int threads) {
        const Range mine = split(n, threads, thread, 16);
        for (int64_t begin = mine.begin; begin < mine.end;) {
            const ElementDraws::Row row = how.draws->row_at(begin, noise, how.layer);
            const int64_t end = std::min(row.end, mine.end);
            const RowBits bits(row.row, row.index);
            for (int64_t i = begin; i < end; i += kLanes) {
                const int64_t lanes = std::min<int64_t>(kLanes, end - i);
                const Vec second = update<kCoupled>(factors, g + i, w + i, m + i, v + i, narrow ? narrow + i : nullptr, lanes);
                const BitVec rounded = rounded_to_bf16(reinterpret_cast<BitVec>(second), bits.at(i - begin));
                store(v + i, reinterpret_cast<Vec>(rounded), lanes);
            }
            begin = end;
        }
    });
}

template <class S, class T>
void adamw_of(ThreadPool& pool, int64_t n, const AdamStep& step, const double* control, const float* g, S* w, S* m, S* v,
              T* narrow) {
    const StepControl now = StepControl::read(control);
    if (!now.commit) return;
    const Factors factors(step, now);
    if (step.l2 != 0) adam_loop<true>(pool, n, factors, g, w, m, v, narrow);
    else adam_loop<false>(pool, n, factors, g, w, m, v, narrow);
}

template <class T>
void adamw_of_narrow_moments_of(ThreadPool& pool, int64_t n, const AdamStep& step, const double* control,
                                const MomentRounding& rounding, const float* g, float* w, Bf16* m, Bf16* v, T* narrow) {
    const StepControl now = StepControl::read(control);
    if (!now.commit) return;
    const Factors factors(step, now);
    if (step.l2 != 0) adam_loop<true>(pool, n, factors, rounding, g, w, m, v, narrow);
    else adam_loop<false>(pool, n, factors, rounding, g, w, m, v, narrow);
}

// The direction of a step with momentum; b: what it remembers, or nullptr.
template <class T>
LOCKSTEP_INLINE Vec direction_of(const MomentumStep& s, Vec grad, T* b, int64_t i, int64_t lanes) {
    if (b == nullptr) return grad;
    const Vec buffer = load(b + i, lanes) * s.momentum + grad;
    store(b + i, buffer, lanes);
    return s.nesterov ? grad + buffer * s.momentum : buffer;
}

template <class T>
void sgd_of(ThreadPool& pool, int64_t n, const MomentumStep& s, const double* control, const float* g, T* w, T* b) {
    const StepControl now = StepControl::read(control);
    if (!now.commit) return;
    const auto lr = static_cast<float>(now.lr), clip = static_cast<float>(now.clip);
    for_each_vector(pool, n, [=](int64_t i, int64_t lanes) {
        const Vec old = load(w + i, lanes), grad = load(g + i, lanes) * clip + old * s.l2;
        store(w + i, old - direction_of(s, grad, b, i, lanes) * lr, lanes);
    });
}

template <class T>
void outer_gradient_of(ThreadPool& pool, int64_t n, float scale, const T* anchor, const T* w, float* g) {
    for_each_vector(
        pool, n, [=](int64_t i, int64_t lanes) { store(g + i, (load(anchor + i, lanes) - load(w + i, lanes)) * scale, lanes); });
}

template <class T>
void outer_sgd_of(ThreadPool& pool, int64_t n, const MomentumStep& s, float lr, float alpha, const float* g, T* w, T* anchor,
                  T* b) {
    for_each_vector(pool, n, [=](int64_t i, int64_t lanes) {
        const Vec agreed = load(anchor + i, lanes) - direction_of(s, load(g + i, lanes), b, i, lanes) * lr;
        store(anchor + i, agreed, lanes);
        store(w + i, alpha == 0 ? agreed : agreed + (load(w + i, lanes) - agreed) * alpha, lanes);
    });
}

template <class T>
void muon_momentum_of(ThreadPool& pool, int64_t n, const MomentumStep& s, const double* control, const float* g, float* u, T* b) {
    const StepControl now = StepControl::read(control);
    if (!now.commit) return std::fill_n(u, n, 0.0f), void();
    const auto clip = static_cast<float>(now.clip);
    for_each_vector(pool, n, [=](int64_t i, int64_t lanes) {
        const Vec grad = load(g + i, lanes) * clip, old = load(b + i, lanes);
        const Vec buffer = old + (grad - old) * (1 - s.momentum);
        store(u + i, s.nesterov ? grad + (buffer - grad) * s.momentum : buffer, lanes);
        store(b + i, buffer, lanes);
    });
}

template <class T>
void muon_of(ThreadPool& pool, int64_t n, double weight_decay, const double* control, const float* o, T* w) {
    const StepControl now = StepControl::read(control);
    if (!now.commit) return;
    const auto keep = static_cast<float>(1 - now.lr * weight_decay), lr = static_cast<float>(now.lr);
    for_each_vector(pool, n,
                    [=](int64_t i, int64_t lanes) { store(w + i, load(w + i, lanes) * keep - load(o + i, lanes) * lr, lanes); });
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

constinit const TypedOnStream<AdamW> adamw([]<class S, class T>() { return adamw_of<S, T>; });
constinit const Typed<AdamWOfNarrowMoments> adamw_of_narrow_moments([]<class T>() { return adamw_of_narrow_moments_of<T>; });
constinit const Typed<Sgd> sgd([]<class T>() { return sgd_of<T>; });
constinit const Typed<MuonMomentum> muon_momentum([]<class T>() { return muon_momentum_of<T>; });
constinit const Typed<Muon> muon([]<class T>() { return muon_of<T>; });
constinit const Typed<OuterGradient> outer_gradient([]<class T>() { return outer_gradient_of<T>; });
constinit const Typed<OuterSgd> outer_sgd([]<class T>() { return outer_sgd_of<T>; });

}  // namespace lockstep::kernels::cpu::LOCKSTEP_ISA
