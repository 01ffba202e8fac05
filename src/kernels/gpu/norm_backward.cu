#include "kernels/gpu/columns.h"
#include "kernels/gpu/norm.h"
#include "kernels/gpu/rows.h"

namespace lockstep::kernels::gpu {
namespace {

// dx: [rows, n], may alias dy or also; also: added to dx, or nullptr. Of each block: sums [n] for dw, and behind those of all
// blocks for db.
template <class S, class W>
struct NormBackward {
    const S *dy, *x;
    const W* w;
    const float *mean, *rstd;
    const S* also;
    S* dx;
    float* sums;
};

// With g = dy w and xn = (x - mean) rstd: dx = rstd (g - mean(g) - xn mean(g xn)) + also; sums of dy xn, and of dy, over the
// rows of a block. RMSNorm has no mean(g).
//
// The pieces of the next row are loaded before those of this one are added up.
template <class P, bool centered, bool adds, class S, class Weight>
__global__ void __launch_bounds__(P::kOfBlock, (blocks_of_norm_backward(P::kMost, centered ? 2 : 1, sizeof(S)) / kProcessors))
    norm_backward_of_pieces_kernel(int64_t rows, int n, NormBackward<S, Weight> a) {
    constexpr int kCount = P::kCount, kSums = centered ? 2 : 1;
    __shared__ typename P::template Parts<kSums> parts;
    SHARED_MEMORY(float, shared);
    using Piece = Waiting<kWide, S>;
    const float share = 1.0f / static_cast<float>(n);
    Waiting<kWide, Weight> weights[kCount];
    P::for_each(n, [&](int k, int i) { weights[k] = Waiting<kWide, Weight>(a.w + i); });
    Floats<kWide> dw[kCount] = {}, db[centered ? kCount : 1] = {};
    Piece next_grads[kCount], next_inputs[kCount], next_others[adds ? kCount : 1];
    float next_rstd = 0, next_mean = 0;
    const auto fetch = [&](int64_t row, int64_t at) {
        next_rstd = a.rstd[row];
        if constexpr (centered) next_mean = a.mean[row];
        P::for_each(n, [&](int k, int i) {
            next_grads[k] = Piece(a.dy + at + i), next_inputs[k] = Piece(a.x + at + i);
            if constexpr (adds) next_others[k] = Piece(a.also + at + i);
        });
    };
    int64_t row = P::first_row();
    const int64_t step = P::rows_at_once();
    if (row < rows) fetch(row, row * n);
    for (int parity = 0; row < rows; row += step, parity ^= 1) {
        const int64_t at = row * n;
        const float rstd = next_rstd, mean = next_mean;
        Piece grads[kCount], inputs[kCount], others[adds ? kCount : 1];
        UNROLL
        for (int k = 0; k < kCount; ++k) {
            grads[k] = next_grads[k], inputs[k] = next_inputs[k];
            if constexpr (adds) others[k] = next_others[k];
        }
        if (row + step < rows) fetch(row + step, at + step * n);
        float sums[kSums] = {};  // of g xn, and of g
        P::for_each(n, [&](int k, int) {
            const Floats<kWide> grad = grads[k].floats(), x = inputs[k].floats(), w = weights[k].floats();
            UNROLL
            for (int j = 0; j < kWide; ++j) {
                const float product = grad[j] * ((x[j] - mean) * rstd);
                dw[k][j] += product;
                sums[0] += product * w[j];
                if constexpr (centered) db[k][j] += grad[j], sums[1] += grad[j] * w[j];
            }
        });
        P::sum_row(sums, parts, parity);
        const float with_x = sums[0] * share, with_one = centered ? sums[kSums - 1] * share : 0.0f;
        P::for_each(n, [&](int k, int i) {
            const Floats<kWide> grad = grads[k].floats(), x = inputs[k].floats(), w = weights[k].floats();
            Floats<kWide> d;
            UNROLL
            for (int j = 0; j < kWide; ++j) d[j] = (grad[j] * w[j] - with_one - (x[j] - mean) * rstd * with_x) * rstd;
            if constexpr (adds) {
                const Floats<kWide> other = others[k].floats();
                UNROLL
                for (int j = 0; j < kWide; ++j) d[j] += other[j];
            }
            store(a.dx + at + i, d);
        });
    }
    const auto write = [&](const Floats<kWide>* held, float* sums) {
        float* const own = P::kRows == 1 ? sums : shared + thread() / P::kThreads * n;
        P::for_each(n, [&](int k, int i) { store(own + i, held[k]); });
        if constexpr (P::kRows > 1) {  // the block's rows, in their order
            block_barrier();
            for (int i = static_cast<int>(thread()); i < n; i += P::kOfBlock) {
                float sum = 0;
                UNROLL
                for (int r = 0; r < P::kRows; ++r) sum += shared[r * n + i];
                sums[i] = sum;
            }
            block_barrier();
        }
    };
    float* const of_block = a.sums + static_cast<int64_t>(block()) * n;
    write(dw, of_block);
    if constexpr (centered) write(db, of_block + static_cast<int64_t>(blocks()) * n);
}

// What a thread adds up over the rows of its block: in registers, beyond kHeld in memory, which nobody else uses meanwhile.
template <int W>
class ColumnSums {
public:
    __device__ explicit ColumnSums(float* memory) : memory_(memory) {}
    __device__ __forceinline__ void add(int k, int i, const Floats<W>& x, bool first) {
        if (k < kHeld) {
            UNROLL
            for (int j = 0; j < W; ++j) held_[k][j] += x[j];
        } else {
            Floats<W> sum = x;
            if (!first) {
                sum = load<W>(memory_ + i);
                UNROLL
                for (int j = 0; j < W; ++j) sum[j] += x[j];
            }
            store(memory_ + i, sum);
        }
    }
    __device__ void write(int n) {
        for_pieces<kBlock, W>(n, [&](int k, int i) {
            if (k < kHeld) store(memory_ + i, held_[k]);
        });
    }

private:
    float* memory_;
    Floats<W> held_[kHeld] = {};
};

// Rows of any length: what a thread does not keep of them it reads again.
template <int W, bool centered, class S, class Weight>
__global__ void __launch_bounds__(kBlock, centered ? 1 : 2) norm_backward_kernel(int64_t rows, int n, NormBackward<S, Weight> a) {
    __shared__ float parts[kBlock / kLanes];
    // Pieces of a row that a thread keeps as they are stored; next to the sums it has registers for no more.
    constexpr int kKept = centered ? 1 : sizeof(S) == 2 ? kHeld : 2, kAlsoKept = sizeof(S) == 2 ? kKept : 0;
    using Piece = Waiting<W, S>;
    float* const sums_w = a.sums + static_cast<int64_t>(block()) * n;
    ColumnSums<W> dw(sums_w), db(sums_w + static_cast<int64_t>(blocks()) * n);
    bool first = true;
    for (int64_t row = first_row<kBlock>(); row < rows; row += rows_at_once<kBlock>()) {
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
        for_pieces<kBlock, W>(n, [&](int k, int i) {
            if (k >= kKept) return;
            grads[k] = Piece(a.dy + at + i), inputs[k] = Piece(a.x + at + i);
            if (k < kAlsoKept && a.also) others[k] = Piece(a.also + at + i);
        });
        for_pieces<kBlock, W>(n, [&](int k, int i) {
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
        with_x = sum_over<kBlock>(with_x, parts) / static_cast<float>(n);
        if constexpr (centered) sum = sum_over<kBlock>(sum, parts) / static_cast<float>(n);
        else sum = 0;
        for_pieces<kBlock, W>(n, [&](int k, int i) {
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
    dw.write(n);
    if (centered) db.write(n);
}

template <bool centered, class S, class Weight>
void start(Stream stream, int64_t rows, int64_t n, const NormBackward<S, Weight>& a, bool adds_dw, float* dw, float* db) {
    const bool wide = is_wide(n, a.dy, a.x, a.w, a.also, a.dx, a.sums);
    const int64_t count = norm_backward_sums(rows, n, centered ? 2 : 1, sizeof(S));
    const auto blocks = static_cast<unsigned>(count);
    const auto of_pieces = [&]<class P>(P) {
        const Grid grid = {blocks, P::kOfBlock, P::kRows > 1 ? static_cast<unsigned>(P::kRows * n * int64_t{sizeof(float)}) : 0};
        launch(a.also ? norm_backward_of_pieces_kernel<P, centered, true, S, Weight>
                      : norm_backward_of_pieces_kernel<P, centered, false, S, Weight>,
               grid, stream, rows, n, a);
    };
    if (count > 0 && !by_pieces<S>(n, wide, of_pieces)) {
        launch(wide ? norm_backward_kernel<kWide, centered, S, Weight> : norm_backward_kernel<1, centered, S, Weight>,
               {blocks, kBlock}, stream, rows, n, a);
    }
    add_columns(stream, count, n, a.sums, adds_dw, dw, db);
}

}  // namespace

template <class S, class W>
void rms_norm_backward(Stream stream, int64_t rows, int64_t n, const S* dy, const S* x, const W* w, const float* rstd,
                       const S* also, S* dx, float* dw, bool adds_dw, void* workspace) {
    float* const sums = static_cast<float*>(workspace);
    start<false>(stream, rows, n, NormBackward<S, W>{dy, x, w, nullptr, rstd, also, dx, sums}, adds_dw, dw, nullptr);
}
template <class S, class W>
void layer_norm_backward(Stream stream, int64_t rows, int64_t n, const S* dy, const S* x, const W* w, const float* mean,
                         const float* rstd, const S* also, S* dx, float* dw, bool adds_dw, float* db, void* workspace) {
    float* const sums = static_cast<float*>(workspace);
    start<true>(stream, rows, n, NormBackward<S, W>{dy, x, w, mean, rstd, also, dx, sums}, adds_dw, dw, db);
}

#define COPY(S, W)                                                                                                              \
    template void rms_norm_backward<S, W>(Stream, int64_t, int64_t, const S*, const S*, const W*, const float*, const S*, S*,   \
                                          float*, bool, void*);                                                                 \
    template void layer_norm_backward<S, W>(Stream, int64_t, int64_t, const S*, const S*, const W*, const float*, const float*, \
                                            const S*, S*, float*, bool, float*, void*);
LOCKSTEP_NORM_BACKWARDS(COPY)
#undef COPY

}  // namespace lockstep::kernels::gpu
