#include "kernels/gpu/attention_merge.h"

#include "kernels/gpu/each.h"
#include "kernels/gpu/rows.h"
#include "mesh/order.h"

namespace lockstep::kernels::gpu {
namespace {

template <int W, bool carries, class T>
__global__ void __launch_bounds__(kBlock, 4)
    merge_kernel(int64_t rows, MergedRows a, const T* part, const float* part_lse, float* out, float* lse) {
    const int64_t of_sequence = (a.seq - a.first) * a.heads;
    const int64_t own = first_row<kLanes>();
    if (own >= rows) return;
    const int64_t row = (own / of_sequence * a.seq + a.first) * a.heads + own % of_sequence;
    const int n = static_cast<int>(a.head_dim);
    const float before = carries ? shuffle_xor(lse[row], 0) : -INFINITY;  // every lane has read before one writes
    const float more = part_lse[row];
    float most = fmaxf(before, more);
    if (most == -INFINITY) most = 0;  // nothing is seen
    const float sum = expf(before - most) + expf(more - most);
    const float old_share = sum > 0 ? expf(before - most) / sum : 0.0f, share = sum > 0 ? expf(more - most) / sum : 0.0f;
    if (thread() % kLanes == 0) lse[row] = carries ? (sum > 0 ? most + logf(sum) : -INFINITY) : more;
    for_pieces<kLanes, W>(n, [&](int, int i) {
        Floats<W> x = load<W>(part + row * n + i);
        if (carries) {
            const Floats<W> old = load<W>(out + row * n + i);
            UNROLL
            for (int j = 0; j < W; ++j) x[j] = old_share * old[j] + share * x[j];
        }
        store(out + row * n + i, x);
    });
}

template <bool carries, class T>
void start(Stream stream, bool wide, const MergedRows& a, const T* part, const float* part_lse, float* out, float* lse) {
    const int64_t rows = a.batch * (a.seq - a.first) * a.heads;
    if (rows > 0)
        launch(wide ? merge_kernel<kWide, carries, T> : merge_kernel<1, carries, T>, grid_of_rows(rows, kLanes), stream, rows, a,
               part, part_lse, out, lse);
}

// Where a token is: its number, counted over all sequences, is at most 2^31.
struct Place {
    uint32_t sequence, token;
    int64_t column;
    __device__ Place(uint32_t first_row, int64_t i, uint32_t seq, uint32_t width) {
        const uint32_t row = first_row + static_cast<uint32_t>(i) / width;
        sequence = row / seq, token = row % seq, column = static_cast<uint32_t>(i) % width;
    }
};

template <class T>
struct Widened {
    WidenedRows a;
    uint32_t first_row;
    const T* x;
    float* sums;
    template <int W>
    __device__ void at(int64_t i) const {
        const Place p(first_row, i, static_cast<uint32_t>(a.seq), static_cast<uint32_t>(a.width));
        const int64_t token = mesh::position_of(a.seq, a.ranks, p.token), begin = p.sequence * a.seq;
        const bool is_given = token >= a.first && token < a.end;
        if (a.adds && !is_given) return;
        float* const to = sums + (begin + p.token) * a.width + p.column;
        Floats<W> sum = {};
        if (is_given) sum = load<W>(x + (begin + token) * a.width + p.column);
        if (a.adds) {
            const Floats<W> old = load<W>(to);
            UNROLL
            for (int j = 0; j < W; ++j) sum[j] += old[j];
        }
        store(to, sum);
    }
};

struct InPlainOrder {
    OrderedRows a;
    uint32_t first_row;
    const Chunk* x;
    Chunk* out;
    template <int W>
    __device__ void at(int64_t i) const {
        const auto chunks = static_cast<uint32_t>(a.row_bytes / static_cast<int64_t>(sizeof(Chunk)));
        const Place p(first_row, i, static_cast<uint32_t>(a.seq), chunks);
        const int64_t token = mesh::position_of(a.seq, a.ranks, p.token), begin = p.sequence * a.seq;
        out[(begin + token) * chunks + p.column] = x[(begin + p.token) * chunks + p.column];
    }
};

}  // namespace

template <class T>
void merge_attention(Stream stream, const MergedRows& rows, const T* part, const float* part_lse, float* out, float* lse) {
    const bool wide = is_wide(rows.head_dim, part) && is_wide(rows.head_dim, out);
    if (rows.carries) start<true>(stream, wide, rows, part, part_lse, out, lse);
    else start<false>(stream, wide, rows, part, part_lse, out, lse);
}

template <class T>
void widen_tokens(Stream stream, const WidenedRows& rows, const T* x, float* sums) {
    const bool wide = is_wide(rows.width, x) && is_wide(rows.width, sums);
    for_each_of_rows(stream, rows.batch * rows.seq, rows.width, wide, [&](int64_t first) {
        return Widened<T>{rows, static_cast<uint32_t>(first), x, sums};
    });
}

void in_plain_order(Stream stream, const OrderedRows& rows, const void* x, void* out) {
    for_each_of_rows(stream, rows.batch * rows.seq, rows.row_bytes / static_cast<int64_t>(sizeof(Chunk)), [&](int64_t first) {
        return InPlainOrder{rows, static_cast<uint32_t>(first), static_cast<const Chunk*>(x), static_cast<Chunk*>(out)};
    });
}

#define COPY(T)                                                                                          \
    template void merge_attention<T>(Stream, const MergedRows&, const T*, const float*, float*, float*); \
    template void widen_tokens<T>(Stream, const WidenedRows&, const T*, float*);
LOCKSTEP_OF_16_BITS(COPY)
#undef COPY

}  // namespace lockstep::kernels::gpu
