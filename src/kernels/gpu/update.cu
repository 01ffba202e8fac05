#include "kernels/gpu/update.h"

#include "kernels/gpu/each.h"

namespace lockstep::kernels::gpu {
namespace {

// Where the scalars are in a control, as StepControl::read has them.
enum Control { kLr, kClip, kCommit, kBiasCorrection1, kBiasCorrection2 };

constexpr int kAdamBlocks = 4;  // in a processor

// As the loop over elements needs them.
struct Factors {
    float grad_scale, keep, one_minus_beta1, beta2, one_minus_beta2, root_correction, eps, step_size, l2;
};
__device__ Factors factors_of(const AdamStep& s, const double* control) {
    Factors f;
    f.grad_scale = static_cast<float>(control[kClip]);
    f.keep = static_cast<float>(1 - control[kLr] * s.weight_decay);
    f.one_minus_beta1 = static_cast<float>(1 - s.beta1);
    f.beta2 = static_cast<float>(s.beta2);
    f.one_minus_beta2 = static_cast<float>(1 - s.beta2);
    f.root_correction = static_cast<float>(1 / sqrt(control[kBiasCorrection2]));
    f.eps = static_cast<float>(s.eps);
    f.step_size = static_cast<float>(control[kLr] / control[kBiasCorrection1]);
    f.l2 = s.l2;
    return f;
}

// Weights as S, moments as M.
template <class S, class M, class T>
struct AdamOf {
    Factors f;
    const float* g;
    S* w;
    M *m, *v;
    T* narrow;
    // round(seconds): as they are stored.
    template <int W, class Round>
    __device__ __forceinline__ void at(int64_t i, const Round& round) const {
        const Floats<W> grads = load<W>(g + i);
        Floats<W> weights = load<W>(w + i), firsts = load<W>(m + i), seconds = load<W>(v + i);
        UNROLL
        for (int j = 0; j < W; ++j) {
            float grad = grads[j] * f.grad_scale;
            if (f.l2 != 0) grad += weights[j] * f.l2;
            firsts[j] += (grad - firsts[j]) * f.one_minus_beta1;
            seconds[j] = seconds[j] * f.beta2 + grad * grad * f.one_minus_beta2;
            weights[j] = weights[j] * f.keep - firsts[j] / (sqrtf(seconds[j]) * f.root_correction + f.eps) * f.step_size;
        }
        store(w + i, weights);
        if (narrow) store(narrow + i, weights);
        store(m + i, firsts);
        round(seconds);
        store(v + i, seconds);
    }
    template <int W>
    __device__ __forceinline__ void at(int64_t i) const {
        at<W>(i, [](Floats<W>&) {});
    }
};

template <class T>
struct AdamOfNarrowMoments {
    AdamOf<float, Bf16, T> adam;
    const ElementDraws* draws;
    uint32_t noise;
    uint64_t layer;
    template <int W>
    __device__ __forceinline__ void at(int64_t i) const {
        adam.template at<W>(i, [&](Floats<W>& seconds) {
            ElementDraws::Row row = draws->row_at(i, noise, layer);
            int64_t begin = i;  // of the row
            UNROLL
            for (int j = 0; j < W; ++j) {
                if (i + j >= row.end) row = draws->row_at(i + j, noise, layer), begin = i + j;
                const uint32_t bits = dropout_bits(row.row, row.index + static_cast<uint32_t>(i + j - begin));
                seconds[j] = std::bit_cast<float>(rounded_to_bf16(std::bit_cast<uint32_t>(seconds[j]), bits));
            }
        });
    }
};

// All blocks are in the processors at once, and each goes on to other elements. One thread of a block works out the factors.
template <int W, class S, class T>
__global__ void __launch_bounds__(kEachThreads, kAdamBlocks)
    adamw_kernel(int64_t n, AdamStep step, const double* control, const float* g, S* w, S* m, S* v, T* narrow) {
    __shared__ Factors factors;
    if (control[kCommit] == 0) return;
    if (thread() == 0) factors = factors_of(step, control);
    block_barrier();
    for_own<W>(n, AdamOf<S, S, T>{factors, g, w, m, v, narrow});
}

template <int W, class T>
__global__ void __launch_bounds__(kEachThreads, kAdamBlocks)
    adamw_of_narrow_moments_kernel(int64_t n, AdamStep step, const double* control, ElementDraws given, const double* steps,
                                   uint64_t layer, const float* g, float* w, Bf16* m, Bf16* v, T* narrow) {
    __shared__ Factors factors;
    __shared__ ElementDraws draws;
    if (control[kCommit] == 0) return;
    if (thread() == 0) {
        factors = factors_of(step, control);
        draws.count = given.count;
        for (int k = 0; k < given.count; ++k) draws.of[k] = given.of[k];
    }
    block_barrier();
    for_own<W>(n, AdamOfNarrowMoments<T>{{factors, g, w, m, v, narrow}, &draws, rounding_noise(given.seed, *steps), layer});
}

// The direction of a step with momentum; b: what it remembers from element i on, or nullptr.
template <int W, class T>
__device__ __forceinline__ Floats<W> direction_of(const MomentumStep& s, Floats<W> grad, T* b, int64_t i) {
    if (!b) return grad;
    Floats<W> buffer = load<W>(b + i);
    UNROLL
    for (int j = 0; j < W; ++j) {
        buffer[j] = buffer[j] * s.momentum + grad[j];
        grad[j] = s.nesterov ? grad[j] + buffer[j] * s.momentum : buffer[j];
    }
    store(b + i, buffer);
    return grad;
}

template <class T>
struct SgdOf {
    MomentumStep step;
    const double* control;
    const float* g;
    T *w, *b;
    template <int W>
    __device__ void at(int64_t i) const {
        if (control[kCommit] == 0) return;
        const auto scale = static_cast<float>(control[kClip]), lr = static_cast<float>(control[kLr]);
        Floats<W> weights = load<W>(w + i), grads = load<W>(g + i);
        UNROLL
        for (int j = 0; j < W; ++j) grads[j] = grads[j] * scale + weights[j] * step.l2;
        grads = direction_of(step, grads, b, i);
        UNROLL
        for (int j = 0; j < W; ++j) weights[j] -= grads[j] * lr;
        store(w + i, weights);
    }
};

template <class T>
struct MuonMomentumOf {
    MomentumStep step;
    const double* control;
    const float* g;
    float* u;
    T* b;
    template <int W>
    __device__ void at(int64_t i) const {
        Floats<W> out = {};
        if (control[kCommit] != 0) {
            const auto scale = static_cast<float>(control[kClip]);
            const Floats<W> grads = load<W>(g + i);
            Floats<W> buffer = load<W>(b + i);
            UNROLL
            for (int j = 0; j < W; ++j) {
                const float grad = grads[j] * scale;
                buffer[j] += (grad - buffer[j]) * (1 - step.momentum);
                out[j] = step.nesterov ? grad + (buffer[j] - grad) * step.momentum : buffer[j];
            }
            store(b + i, buffer);
        }
        store(u + i, out);
    }
};

template <class T>
struct MuonOf {
    double weight_decay;
    const double* control;
    const float* o;
    T* w;
    template <int W>
    __device__ void at(int64_t i) const {
        if (control[kCommit] == 0) return;
        const auto keep = static_cast<float>(1 - control[kLr] * weight_decay), lr = static_cast<float>(control[kLr]);
        const Floats<W> directions = load<W>(o + i);
        Floats<W> weights = load<W>(w + i);
        UNROLL
        for (int j = 0; j < W; ++j) weights[j] = weights[j] * keep - directions[j] * lr;
        store(w + i, weights);
    }
};

template <class T>
struct OuterGradientOf {
    float scale;
    const T *anchor, *w;
    float* g;
    template <int W>
    __device__ void at(int64_t i) const {
        const Floats<W> weights = load<W>(w + i);
        Floats<W> out = load<W>(anchor + i);
        UNROLL
        for (int j = 0; j < W; ++j) out[j] = (out[j] - weights[j]) * scale;
        store(g + i, out);
    }
};

template <class T>
struct OuterSgdOf {
    MomentumStep step;
    float lr, alpha;
    const float* g;
    T *w, *anchor, *b;
    template <int W>
    __device__ void at(int64_t i) const {
        const Floats<W> directions = direction_of(step, load<W>(g + i), b, i);
        Floats<W> agreed = load<W>(anchor + i);
        UNROLL
        for (int j = 0; j < W; ++j) agreed[j] -= directions[j] * lr;
        store(anchor + i, agreed);
        if (alpha != 0) {
            const Floats<W> weights = load<W>(w + i);
            UNROLL
            for (int j = 0; j < W; ++j) agreed[j] += (weights[j] - agreed[j]) * alpha;
        }
        store(w + i, agreed);
    }
};

// A thread has several sums, so that none waits for the one before.
template <int W>
__global__ void __launch_bounds__(kEachThreads) squares_kernel(int64_t n, const float* x, double* sums) {
    constexpr int kSums = W < 4 ? W : 4;
    __shared__ double parts[kEachThreads / kLanes];
    double own[kSums] = {};
    const int64_t all = static_cast<int64_t>(blocks()) * kEachThreads,
                  first = static_cast<int64_t>(block()) * kEachThreads + thread();
    UNROLL_BY(4)
    for (int64_t i = first; i < n / W; i += all) {
        const Floats<W> v = load<W>(x + i * W);
        UNROLL
        for (int j = 0; j < W; ++j) own[j % kSums] += static_cast<double>(v[j]) * v[j];
    }
    for (int64_t i = n / W * W + first; i < n; i += all) own[0] += static_cast<double>(x[i]) * x[i];
    double sum = own[0];
    UNROLL
    for (int k = 1; k < kSums; ++k) sum += own[k];
    sum = sum_over<kEachThreads>(sum, parts);
    if (thread() == 0) sums[block()] = sum;
}

__global__ void __launch_bounds__(kEachThreads) total_kernel(int64_t count, const double* sums, bool adds, double* total) {
    __shared__ double parts[kEachThreads / kLanes];
    double sum = 0;
    for (int64_t i = thread(); i < count; i += kEachThreads) sum += sums[i];
    sum = sum_over<kEachThreads>(sum, parts);
    if (thread() == 0) *total = adds ? *total + sum : sum;
}

}  // namespace

template <class S, class T>
void adamw(Stream stream, int64_t n, const AdamStep& step, const double* control, const float* g, S* w, S* m, S* v, T* narrow) {
    if (n == 0) return;
    const bool wide = is_wide(0, g, w, m, v, narrow);
    Grid grid = grid_of_elements(n, wide);
    if (grid.blocks > kAdamBlocks * kProcessors) grid.blocks = kAdamBlocks * kProcessors;
    launch(wide ? adamw_kernel<kWide, S, T> : adamw_kernel<1, S, T>, grid, stream, n, step, control, g, w, m, v, narrow);
}

template <class T>
void adamw_of_narrow_moments(Stream stream, int64_t n, const AdamStep& step, const double* control,
                             const MomentRounding& rounding, const float* g, float* w, Bf16* m, Bf16* v, T* narrow) {
    if (n == 0) return;
    const bool wide = is_wide(0, g, w, m, v, narrow);
    Grid grid = grid_of_elements(n, wide);
    if (grid.blocks > kAdamBlocks * kProcessors) grid.blocks = kAdamBlocks * kProcessors;
    launch(wide ? adamw_of_narrow_moments_kernel<kWide, T> : adamw_of_narrow_moments_kernel<1, T>, grid, stream, n, step, control,
           *rounding.draws, rounding.steps, rounding.layer, g, w, m, v, narrow);
}

template <class T>
void sgd(Stream stream, int64_t n, const MomentumStep& step, const double* control, const float* g, T* w, T* b) {
    for_each(stream, n, is_wide(0, g, w, b), SgdOf<T>{step, control, g, w, b});
}
template <class T>
void muon_momentum(Stream stream, int64_t n, const MomentumStep& step, const double* control, const float* g, float* u, T* b) {
    for_each(stream, n, is_wide(0, g, u, b), MuonMomentumOf<T>{step, control, g, u, b});
}
template <class T>
void muon(Stream stream, int64_t n, double weight_decay, const double* control, const float* o, T* w) {
    for_each(stream, n, is_wide(0, o, w), MuonOf<T>{weight_decay, control, o, w});
}
template <class T>
void outer_gradient(Stream stream, int64_t n, float scale, const T* anchor, const T* w, float* g) {
    for_each(stream, n, is_wide(0, anchor, w, g), OuterGradientOf<T>{scale, anchor, w, g});
}
template <class T>
void outer_sgd(Stream stream, int64_t n, const MomentumStep& step, float lr, float alpha, const float* g, T* w, T* anchor, T* b) {
    for_each(stream, n, is_wide(0, g, w, anchor, b), OuterSgdOf<T>{step, lr, alpha, g, w, anchor, b});
}

void sum_of_squares(Stream stream, int64_t n, const float* x, bool counts, bool adds, double* total, double* sums) {
    const int64_t count = counts ? sums_of_squares(n) : 0;
    if (count > 0)
        launch(is_wide(0, x) ? squares_kernel<kWide> : squares_kernel<1>, {static_cast<unsigned>(count), kEachThreads}, stream, n,
               x, sums);
    launch(total_kernel, {1, kEachThreads}, stream, count, sums, adds, total);
}

#define COPY(T)                                                                                                      \
    template void adamw_of_narrow_moments<T>(Stream, int64_t, const AdamStep&, const double*, const MomentRounding&, \
                                             const float*, float*, Bf16*, Bf16*, T*);                                \
    template void sgd<T>(Stream, int64_t, const MomentumStep&, const double*, const float*, T*, T*);                 \
    template void muon_momentum<T>(Stream, int64_t, const MomentumStep&, const double*, const float*, float*, T*);   \
    template void muon<T>(Stream, int64_t, double, const double*, const float*, T*);                                 \
    template void outer_gradient<T>(Stream, int64_t, float, const T*, const T*, float*);                             \
    template void outer_sgd<T>(Stream, int64_t, const MomentumStep&, float, float, const float*, T*, T*, T*);
LOCKSTEP_OF_ONE_TYPE(COPY)
#undef COPY
#define COPY(S, T) template void adamw<S, T>(Stream, int64_t, const AdamStep&, const double*, const float*, S*, S*, S*, T*);
LOCKSTEP_ON_STREAM(COPY)
#undef COPY

}  // namespace lockstep::kernels::gpu
