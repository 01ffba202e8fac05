#include "kernels/gpu/norm.h"

#include "kernels/gpu/columns.h"
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

template <int Threads, int W, bool centered, class S, class T, class Weight>
__global__ void __launch_bounds__(kBlock, 2) norm_kernel(int64_t rows, int n, Norm<S, T, Weight> a) {
    __shared__ float parts[kBlock / kLanes];
    const int64_t row = first_row<Threads>();
    if (row >= rows) return;
    const S* const x = a.x + row * n;
    const S* const normed = a.residual ? a.s + row * n : x;
    Floats<W> held[kHeld] = {};
    const auto piece = [&](int k, int i) { return k < kHeld ? held[k] : load<W>(normed + i); };

    float sum = 0;
    for_pieces<Threads, W>(n, [&](int k, int i) {
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
    sum = sum_over<Threads>(sum, parts);
    float mean = 0;
    if constexpr (centered) {
        mean = sum / static_cast<float>(n), sum = 0;
        for_pieces<Threads, W>(n, [&](int k, int i) {
            const Floats<W> v = piece(k, i);
            UNROLL
            for (int j = 0; j < W; ++j) sum += (v[j] - mean) * (v[j] - mean);
        });
        sum = sum_over<Threads>(sum, parts);
    }
    const float rstd = 1.0f / sqrtf(sum / static_cast<float>(n) + a.eps);
    for_pieces<Threads, W>(n, [&](int k, int i) {
        const Floats<W> v = piece(k, i), w = load<W>(a.w + i);
        Floats<W> y;
        UNROLL
        for (int j = 0; j < W; ++j) y[j] = (v[j] - mean) * rstd * w[j];
        if constexpr (centered) {
            const Floats<W> b = load<W>(a.b + i);
            UNROLL
            for (int j = 0; j < W; ++j) y[j] += b[j];
        }
        store(a.y + row * n + i, y);
    });
    if (thread() % Threads != 0) return;
    a.rstd[row] = rstd;
    if (centered) a.mean[row] = mean;
}

// dx: [rows, n], may alias dy or also; also: added to dx, or nullptr. dw, db: [n]; dw is replaced or added to, db replaced.
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

// With g = dy w and xn = (x - mean) rstd: dx = rstd (g - mean(g) - xn mean(g xn)) + also; sums of dy xn, and of dy, over the
// rows of a block. RMSNorm has no mean(g).
template <int Threads, int W, bool centered, class S, class Weight>
__global__ void __launch_bounds__(kBlock, centered ? 1 : 2) norm_backward_kernel(int64_t rows, int n, NormBackward<S, Weight> a) {
    __shared__ float parts[kBlock / kLanes];
    SHARED_MEMORY(float, shared);
    // Pieces of a row that a thread keeps as they are stored; next to the sums it has registers for no more.
    constexpr int kKept = centered ? 1 : sizeof(S) == 2 ? kHeld : 2, kAlsoKept = sizeof(S) == 2 ? kKept : 0;
    using Piece = Waiting<W, S>;
    float* const sums_w = a.sums + static_cast<int64_t>(block()) * n;
    float* const sums_b = sums_w + static_cast<int64_t>(blocks()) * n;
    ColumnSums<Threads, W> dw(sums_w), db(sums_b);
    bool first = true;
    for (int64_t row = first_row<Threads>(); row < rows; row += rows_at_once<Threads>()) {
        const float rstd = a.rstd[row], mean = centered ? a.mean[row] : 0.0f;
        const int64_t at = row * n;
        Piece grads[kKept] = {}, inputs[kKept] = {}, others[kAlsoKept > 0 ? kAlsoKept : 1] = {};
        const auto normal_of = [&](const Piece& x) {
            Floats<W> normal = x.floats();
            UNROLL
            for (int j = 0; j < W; ++j) normal[j] = (normal[j] - mean) * rstd;
            return normal;
        };
        float sum = 0, with_x = 0;
        for_pieces<Threads, W>(n, [&](int k, int i) {
            if (k >= kKept) return;
            grads[k] = Piece(a.dy + at + i), inputs[k] = Piece(a.x + at + i);
            if (k < kAlsoKept && a.also) others[k] = Piece(a.also + at + i);
        });
        for_pieces<Threads, W>(n, [&](int k, int i) {
            const Floats<W> grad = k < kKept ? grads[k].floats() : load<W>(a.dy + at + i),
                            normal = normal_of(k < kKept ? inputs[k] : Piece(a.x + at + i)), w = load<W>(a.w + i);
            Floats<W> product;
            UNROLL
            for (int j = 0; j < W; ++j) {
                product[j] = grad[j] * normal[j];
                with_x += product[j] * w[j];
                sum += grad[j] * w[j];
            }
            dw.add(k, i, product, first);
            if (centered) db.add(k, i, grad, first);
        });
        with_x = sum_over<Threads>(with_x, parts) / static_cast<float>(n);
        if constexpr (centered) sum = sum_over<Threads>(sum, parts) / static_cast<float>(n);
        else sum = 0;
        for_pieces<Threads, W>(n, [&](int k, int i) {
            const Floats<W> grad = k < kKept ? grads[k].floats() : load<W>(a.dy + at + i),
                            normal = normal_of(k < kKept ? inputs[k] : Piece(a.x + at + i)), w = load<W>(a.w + i);
            Floats<W> d;
            UNROLL
            for (int j = 0; j < W; ++j) d[j] = (grad[j] * w[j] - sum - normal[j] * with_x) * rstd;
            if (a.also) {
                const Floats<W> also = k < kAlsoKept ? others[k].floats() : load<W>(a.also + at + i);
                UNROLL
                for (int j = 0; j < W; ++j) d[j] += also[j];
            }
            store(a.dx + at + i, d);
        });
        first = false;
    }
    dw.write(n, sums_w, shared);
    if (centered) db.write(n, sums_b, shared);
}

template <bool centered, class S, class T, class Weight>
void start_norm(Stream stream, int64_t rows, int64_t n, const Norm<S, T, Weight>& a) {
    if (rows == 0) return;
    by_shape(n, is_wide(n, a.x, a.residual, a.w, a.b, a.s, a.y), [&]<int Threads, int W>() {
        launch(norm_kernel<Threads, W, centered, S, T, Weight>, grid_of_rows(rows, Threads), stream, rows, n, a);
    });
}

template <bool centered, class S, class Weight>
void start_backward(Stream stream, int64_t rows, int64_t n, const NormBackward<S, Weight>& a) {
    const int64_t count = blocks_of_sums(rows);
    by_shape(n, is_wide(n, a.dy, a.x, a.w, a.also, a.dx, a.sums), [&]<int Threads, int W>() {
        const unsigned shared_bytes = shared_of_sums(Threads, n);
        if (count > 0)
            launch(norm_backward_kernel<Threads, W, centered, S, Weight>, {static_cast<unsigned>(count), kBlock, shared_bytes},
                   stream, rows, n, a);
    });
    add_columns(stream, count, n, a.sums, a.adds_dw, a.dw);
    if (centered) add_columns(stream, count, n, a.sums + count * n, false, a.db);
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
void layer_norm(Stream stream, int64_t rows, int64_t n, const S* x, const W* w, const W* b, float eps, T* y, float* mean,
                float* rstd) {
    start_norm<true>(stream, rows, n, Norm<S, T, W>{x, nullptr, w, b, eps, nullptr, y, mean, rstd});
}
template <class S, class W>
void rms_norm_backward(Stream stream, int64_t rows, int64_t n, const S* dy, const S* x, const W* w, const float* rstd,
                       const S* also, S* dx, float* dw, bool adds_dw, void* workspace) {
    float* const sums = static_cast<float*>(workspace);
    start_backward<false>(stream, rows, n, NormBackward<S, W>{dy, x, w, nullptr, rstd, also, dx, dw, nullptr, adds_dw, sums});
}
template <class S, class W>
void layer_norm_backward(Stream stream, int64_t rows, int64_t n, const S* dy, const S* x, const W* w, const float* mean,
                         const float* rstd, const S* also, S* dx, float* dw, bool adds_dw, float* db, void* workspace) {
    float* const sums = static_cast<float*>(workspace);
    start_backward<true>(stream, rows, n, NormBackward<S, W>{dy, x, w, mean, rstd, also, dx, dw, db, adds_dw, sums});
}

#define COPY(S, T, W)                                                                                                   \
    template void rms_norm<S, T, W>(Stream, int64_t, int64_t, const S*, const W*, float, T*, float*);                   \
    template void add_rms_norm<S, T, W>(Stream, int64_t, int64_t, const S*, const S*, const W*, float, S*, T*, float*); \
    template void layer_norm<S, T, W>(Stream, int64_t, int64_t, const S*, const W*, const W*, float, T*, float*, float*);
LOCKSTEP_NORMS(COPY)
#undef COPY
#define COPY(S, W)                                                                                                              \
    template void rms_norm_backward<S, W>(Stream, int64_t, int64_t, const S*, const S*, const W*, const float*, const S*, S*,   \
                                          float*, bool, void*);                                                                 \
    template void layer_norm_backward<S, W>(Stream, int64_t, int64_t, const S*, const S*, const W*, const float*, const float*, \
                                            const S*, S*, float*, bool, float*, void*);
LOCKSTEP_NORM_BACKWARDS(COPY)
#undef COPY

}  // namespace lockstep::kernels::gpu
