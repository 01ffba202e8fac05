#include "kernels/gpu/norm.h"

#include "kernels/gpu/amax.h"
#include "kernels/gpu/rows.h"

namespace lockstep::kernels::gpu {
namespace {

// The norm of s = x + residual, or, without a residual, of x (s is not written). y = (x - mean) rstd w + b; RMSNorm has neither
// a mean nor b. x, residual, s, y: [rows, n]; w, b: [n]; mean, rstd: [rows]. s may alias x or residual, y what is of its type.
template <class S, class T, class W>
struct Norm {
    const S *x, *residual;
    const W *w, *b;
    float eps;
    S* s;
    T* y;
    float *mean, *rstd;
};

// Rows of any length: what a thread does not keep of them it reads again.
template <int W, bool centered, class S, class T, class Weight, class Amax>
__global__ void __launch_bounds__(kBlock, 2) norm_kernel(int n, Norm<S, T, Weight> a, Amax amax) {
    __shared__ float parts[kBlock / kLanes];
    const int64_t row = first_row<kBlock>();
    auto largest = amax.start();
    const S* const x = a.x + row * n;
    const S* const normed = a.residual ? a.s + row * n : x;
    Floats<W> held[kHeld] = {};
    const auto piece = [&](int k, int i) { return k < kHeld ? held[k] : load<W>(normed + i); };

    float sum = 0;
    for_pieces<kBlock, W>(n, [&](int k, int i) {
        Floats<W> v = load<W>(x + i);
        if (a.residual) {
            const Floats<W> other = load<W>(a.residual + row * n + i);
            UNROLL
            for (int j = 0; j < W; ++j) v[j] = widen(narrow<S>(v[j] + other[j]));
            store(a.s + row * n + i, v);
        }
        if (k < kHeld) held[k] = v;
        UNROLL
        for (int j = 0; j < W; ++j) sum += centered ? v[j] : v[j] * v[j];
    });
    sum = sum_over<kBlock>(sum, parts);
    float mean = 0;
    if constexpr (centered) {
        mean = sum / static_cast<float>(n), sum = 0;
        for_pieces<kBlock, W>(n, [&](int k, int i) {
            const Floats<W> v = piece(k, i);
            UNROLL
            for (int j = 0; j < W; ++j) sum += (v[j] - mean) * (v[j] - mean);
        });
        sum = sum_over<kBlock>(sum, parts);
    }
    const float rstd = 1.0f / sqrtf(sum / static_cast<float>(n) + a.eps);
    largest.begin(amax.group(row));
    for_pieces<kBlock, W>(n, [&](int k, int i) {
        const Floats<W> v = piece(k, i), w = load<W>(a.w + i);
        Floats<W> y;
        UNROLL
        for (int j = 0; j < W; ++j) y[j] = (v[j] - mean) * rstd * w[j];
        if constexpr (centered) {
            const Floats<W> b = load<W>(a.b + i);
            UNROLL
            for (int j = 0; j < W; ++j) y[j] += b[j];
        }
        largest.take(y);
        store(a.y + row * n + i, y);
    });
    largest.end();
    if (thread() != 0) return;
    a.rstd[row] = rstd;
    if (centered) a.mean[row] = mean;
}

// Blocks of Pieces<..> that fit into a processor at once, by the registers that they need.
template <class P, class S, class W>
constexpr int blocks_of_norm(bool centered, bool gives_amax) {
    const int registers = (centered ? 48 : 40) + (gives_amax ? 24 : 0) + (P::kCount - 1) * 16 + (sizeof(S) == 4 ? 24 : 0) +
                          (sizeof(W) == 4 ? 8 : 0);
    const int fit = 65536 / registers / P::kOfBlock, most = 2048 / P::kOfBlock;
    return fit < most ? fit : most;
}

template <class Amax>
inline constexpr bool kGives = !std::is_same_v<Amax, NoAmax>;

template <class P, bool centered, bool adds, class S, class T, class Weight, class Amax>
__global__ void __launch_bounds__(P::kOfBlock, (blocks_of_norm<P, S, Weight>(centered, kGives<Amax>)))
    norm_of_pieces_kernel(int64_t rows, int n, Norm<S, T, Weight> a, Amax amax) {
    __shared__ typename P::template Parts<1> of_sum, of_squares;
    using Piece = Waiting<kWide, S>;
    using Parameters = Waiting<kWide, Weight>;
    const float share = 1.0f / static_cast<float>(n);
    Parameters weights[P::kCount], biases[P::kCount];
    P::for_each(n, [&](int k, int i) {
        weights[k] = Parameters(a.w + i);
        if constexpr (centered) biases[k] = Parameters(a.b + i);
    });
    Piece next[P::kCount], next_residual[adds ? P::kCount : 1];
    const auto fetch = [&](int64_t at) {
        P::for_each(n, [&](int k, int i) {
            next[k] = Piece(a.x + at + i);
            if constexpr (adds) next_residual[k] = Piece(a.residual + at + i);
        });
    };
    auto largest = amax.start();
    int64_t row = P::first_row();
    const int64_t step = P::rows_at_once();
    if (row < rows) fetch(row * n);
    for (int parity = 0; row < rows; row += step, parity ^= 1) {
        const int64_t at = row * n;
        Piece held[P::kCount];
        float sum[1] = {};
        P::for_each(n, [&](int k, int i) {
            Floats<kWide> v = next[k].floats();
            held[k] = next[k];
            if constexpr (adds) {
                const Floats<kWide> other = next_residual[k].floats();
                UNROLL
                for (int j = 0; j < kWide; ++j) v[j] += other[j];
                const Stored<kWide, S> stored = narrowed<kWide, S>(v);
                store_stored(a.s + at + i, stored);
                held[k] = Piece(stored), v = widened(stored);
            }
            UNROLL
            for (int j = 0; j < kWide; ++j) sum[0] += centered ? v[j] : v[j] * v[j];
        });
        if (row + step < rows) fetch(at + step * n);
        P::sum_row(sum, of_sum, parity);
        float mean = 0;
        if constexpr (centered) {
            mean = sum[0] * share, sum[0] = 0;
            P::for_each(n, [&](int k, int) {
                const Floats<kWide> v = held[k].floats();
                UNROLL
                for (int j = 0; j < kWide; ++j) sum[0] += (v[j] - mean) * (v[j] - mean);
            });
            P::sum_row(sum, of_squares, parity);
        }
        const float rstd = inverse_root<S>(sum[0] * share + a.eps);
        largest.begin(amax.group(row));
        P::for_each(n, [&](int k, int i) {
            const Floats<kWide> v = held[k].floats(), w = weights[k].floats();
            Floats<kWide> y;
            UNROLL
            for (int j = 0; j < kWide; ++j) y[j] = (v[j] - mean) * rstd * w[j];
            if constexpr (centered) {
                const Floats<kWide> b = biases[k].floats();
                UNROLL
                for (int j = 0; j < kWide; ++j) y[j] += b[j];
            }
            largest.take(y);
            store(a.y + at + i, y);
        });
        if (thread() % P::kThreads == 0) {
            a.rstd[row] = rstd;
            if (centered) a.mean[row] = mean;
        }
    }
    largest.end();
}

template <bool centered, class S, class T, class Weight, class Amax = NoAmax>
void start_norm(Stream stream, int64_t rows, int64_t n, const Norm<S, T, Weight>& a, const Amax& amax = {}) {
    if (rows == 0) return;
    const bool wide = is_wide(n, a.x, a.residual, a.w, a.b, a.s, a.y);
    if (by_pieces<S>(n, wide, [&]<class P>(P) {
            const Grid grid = grid_of_pieces<P>(rows, blocks_of_norm<P, S, Weight>(centered, kGives<Amax>));
            const auto go = [&](auto kernel) { launch(kernel, grid, stream, rows, n, a, amax); };
            if (!a.residual) go(norm_of_pieces_kernel<P, centered, false, S, T, Weight, Amax>);
            else if constexpr (!centered) go(norm_of_pieces_kernel<P, false, true, S, T, Weight, Amax>);
        }))
        return;
    launch(wide ? norm_kernel<kWide, centered, S, T, Weight, Amax> : norm_kernel<1, centered, S, T, Weight, Amax>,
           grid_of_rows(rows, kBlock), stream, n, a, amax);
}

}  // namespace

template <class S, class T, class W>
void rms_norm(Stream stream, int64_t rows, int64_t n, const S* x, const W* w, float eps, T* y, float* rstd) {
    start_norm<false>(stream, rows, n, Norm<S, T, W>{x, nullptr, w, nullptr, eps, nullptr, y, nullptr, rstd});
}
template <class S, class T, class W>
void add_rms_norm(Stream stream, int64_t rows, int64_t n, const S* x, const S* residual, const W* w, float eps, S* s, T* y,
                  float* rstd) {
    start_norm<false>(stream, rows, n, Norm<S, T, W>{x, residual, w, nullptr, eps, s, y, nullptr, rstd});
}
template <class S, class T, class W>
void rms_norm_amax(Stream stream, int64_t rows, int64_t n, const S* x, const S* residual, const W* w, float eps, S* s, T* y,
                   float* rstd, const Grouping& groups, float* amax) {
    start_norm<false>(stream, rows, n, Norm<S, T, W>{x, residual, w, nullptr, eps, s, y, nullptr, rstd},
                      AmaxOfRows<T>{groups, groups.run / n, reinterpret_cast<int*>(amax)});
}
template <class S, class T, class W>
void layer_norm(Stream stream, int64_t rows, int64_t n, const S* x, const W* w, const W* b, float eps, T* y, float* mean,
                float* rstd) {
    start_norm<true>(stream, rows, n, Norm<S, T, W>{x, nullptr, w, b, eps, nullptr, y, mean, rstd});
}

#define COPY(S, T, W)                                                                                                   \
    template void rms_norm<S, T, W>(Stream, int64_t, int64_t, const S*, const W*, float, T*, float*);                   \
    template void add_rms_norm<S, T, W>(Stream, int64_t, int64_t, const S*, const S*, const W*, float, S*, T*, float*); \
    template void rms_norm_amax<S, T, W>(Stream, int64_t, int64_t, const S*, const S*, const W*, float, S*, T*, float*, \
                                         const Grouping&, float*);                                                      \
    template void layer_norm<S, T, W>(Stream, int64_t, int64_t, const S*, const W*, const W*, float, T*, float*, float*);
LOCKSTEP_NORMS(COPY)
#undef COPY

}  // namespace lockstep::kernels::gpu
