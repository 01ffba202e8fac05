#include "kernels/gpu/tokens.h"

#include "base/random.h"
#include "kernels/gpu/each.h"

namespace lockstep::kernels::gpu {
namespace {

template <class S, class T>
struct EmbeddingOf {
    const int32_t* ids;
    const T* table;
    int64_t first_id, rows, hidden;
    S* out;
    template <int W>
    __device__ void at(int64_t i) const {
        const int64_t row = ids[i / hidden] - first_id;
        Floats<W> x = {};
        if (row >= 0 && row < rows) x = load<W>(table + row * hidden + i % hidden);
        store(out + i, x);
    }
};

constexpr int64_t kIdBlocks = 1024;  // that share the ids of the vocabulary between them
constexpr int kOfThread = 8, kListed = kEachThreads * kOfThread;

// Of kListed tokens those whose ids a block has, in order: each with its row, and with its place among those of its row.
struct Listed {
    int *token, *row, *next;  // next: the entry with the next token of the row, or -1
    int *is_first, *counts;   // counts: of a thread

    static constexpr unsigned kBytes = (4 * kListed + kEachThreads) * sizeof(int);
    __device__ explicit Listed(int* shared)
        : token(shared), row(token + kListed), next(row + kListed), is_first(next + kListed), counts(is_first + kListed) {}

    // For tokens from `begin` on; is_own(row). Their number.
    template <class RowOf, class IsOwn>
    __device__ int find(int64_t begin, int64_t tokens, RowOf row_of, IsOwn is_own) const {
        const int own = static_cast<int>(thread());
        const int64_t first = begin + own * kOfThread;
        int found = 0, before = 0, all = 0;
        for (int j = 0; j < kOfThread; ++j) found += first + j < tokens && is_own(row_of(first + j)) ? 1 : 0;
        block_barrier();  // the last list has been read
        counts[own] = found;
        block_barrier();
        for (int t = 0; t < kEachThreads; ++t) before += t < own ? counts[t] : 0, all += counts[t];
        for (int j = 0; j < kOfThread && found > 0; ++j) {
            if (first + j >= tokens || !is_own(row_of(first + j))) continue;
            token[before] = static_cast<int>(first - begin) + j, row[before] = static_cast<int>(row_of(first + j)), ++before;
        }
        block_barrier();
        for (int entry = own; entry < all; entry += kEachThreads) {
            int other = entry + 1;
            while (other < all && row[other] != row[entry]) ++other;
            next[entry] = other < all ? other : -1;
            for (other = 0; row[other] != row[entry];) ++other;
            is_first[entry] = other == entry;
        }
        block_barrier();
        return all;
    }
};

// A block has a part of the columns and of the ids:
// nobody else adds to its rows, and each has one order of sums, that of tokens.
template <int W, class T>
__global__ void __launch_bounds__(kEachThreads, 4)
    embedding_backward_kernel(int64_t tokens, int64_t hidden, int64_t column_blocks, const int32_t* ids, int64_t first_id,
                              int64_t rows, const T* d_out, bool adds, float* d_table) {
    constexpr int kAhead = 4;  // gradients that are on their way at once
    SHARED_MEMORY(int, shared);
    const Listed list(shared);
    const int64_t part = block() / column_blocks, parts = blocks() / column_blocks;
    const int64_t i = (block() % column_blocks * kEachThreads + thread()) * W;
    if (!adds && i < hidden) {
        for (int64_t row = part; row < rows; row += parts) store(d_table + row * hidden + i, Floats<W>{});
    }
    for (int64_t begin = 0; begin < tokens; begin += kListed) {
        const int count = list.find(
            begin, tokens, [&](int64_t t) { return ids[t] - first_id; },
            [&](int64_t row) { return row >= 0 && row < rows && row % parts == part; });
        if (i >= hidden) continue;
        for (int entry = 0; entry < count; ++entry) {
            if (!list.is_first[entry]) continue;
            float* const to = d_table + list.row[entry] * hidden + i;
            Floats<W> sum = load<W>(to);
            for (int at = entry; at >= 0;) {
                Floats<W> d[kAhead] = {};
                UNROLL
                for (int k = 0; k < kAhead; ++k) {
                    if (at < 0) continue;
                    d[k] = load<W>(d_out + (begin + list.token[at]) * hidden + i);
                    at = list.next[at];
                }
                UNROLL
                for (int k = 0; k < kAhead; ++k) {
                    UNROLL
                    for (int j = 0; j < W; ++j) sum[j] += d[k][j];
                }
            }
            store(to, sum);
        }
    }
}

// Within 2e-7. The angle is reduced in double to a quarter of a turn around 0, so that long contexts lose nothing; then Taylor
// polynomials in float, whose next terms are below 1e-8.
__device__ __forceinline__ void sine_cosine(double angle, float& sine, float& cosine) {
    constexpr double kHalfPi = 1.57079632679489661923;
    const double quarters = rint(angle * (1 / kHalfPi));
    const auto r = static_cast<float>(angle - quarters * kHalfPi), r2 = r * r;
    const float s = ((((1 / 362880.0f) * r2 - 1 / 5040.0f) * r2 + 1 / 120.0f) * r2 - 1 / 6.0f) * r2 * r + r;
    const float c = ((((1 / 40320.0f) * r2 - 1 / 720.0f) * r2 + 1 / 24.0f) * r2 - 0.5f) * r2 + 1;
    const auto quadrant = static_cast<int64_t>(quarters);
    sine = quadrant & 1 ? c : s, cosine = quadrant & 1 ? s : c;
    if (quadrant & 2) sine = -sine;
    if ((quadrant + 1) & 2) cosine = -cosine;
}

// Of W pairs of a head.
template <class T>
struct RopeOf {
    int64_t heads, half;
    const T* x;
    const int32_t* positions;
    Frequencies frequencies;
    float sign;
    T* out;
    template <int W>
    __device__ void at(int64_t i) const {
        const int64_t head = i / half, first = i % half, from = head * 2 * half + first;
        const double position = positions[head / heads];
        Floats<W> a = load<W>(x + from), b = load<W>(x + from + half);
        UNROLL
        for (int j = 0; j < W; ++j) {
            float sine, cosine;
            sine_cosine(position * frequencies.of[first + j], sine, cosine);
            sine *= sign;
            const float low = a[j] * cosine - b[j] * sine;
            b[j] = b[j] * cosine + a[j] * sine;
            a[j] = low;
        }
        store(out + from, a);
        store(out + from + half, b);
    }
};

// Of W pairs of up to kHeads heads of a token, which have the same sines. Indices of fewer than 2^31: a division of 64 bits
// takes the registers that the elements need.
constexpr int kHeads = 4;
template <class T, bool splits>
struct MoveQkv {
    uint32_t queries, keys, half;
    const int32_t* positions;
    Frequencies frequencies;
    float sign;
    T *qkv, *q, *k, *v;

    __device__ uint32_t groups() const { return (queries + 2 * keys + kHeads - 1) / kHeads; }
    __device__ T* apart(int64_t token, uint32_t head) const {
        if (head < queries) return q + (token * queries + head) * 2 * half;
        if (head < queries + keys) return k + (token * keys + head - queries) * 2 * half;
        return v + (token * keys + head - queries - keys) * 2 * half;
    }
    template <int W>
    __device__ void at(int64_t i) const {
        const uint32_t piece = static_cast<uint32_t>(i) / half, first = static_cast<uint32_t>(i) % half;
        const uint32_t row = piece / groups(), begin = piece % groups() * kHeads, heads = queries + 2 * keys;
        const int64_t token = row;
        Floats<W> sines = {}, cosines = {};
        if (positions && begin < queries + keys) {
            const double position = positions[token];
            UNROLL
            for (int j = 0; j < W; ++j) {
                sine_cosine(position * frequencies.of[first + j], sines[j], cosines[j]);
                sines[j] *= sign;
            }
        }
        UNROLL
        for (uint32_t n = 0; n < kHeads; ++n) {
            const uint32_t head = begin + n;
            if (head >= heads) continue;
            T *const together = qkv + (token * heads + head) * 2 * half + first, *const other = apart(token, head) + first;
            const T* const from = splits ? together : other;
            T* const to = splits ? other : together;
            Floats<W> a = load<W>(from), b = load<W>(from + half);
            if (positions && head < queries + keys) {
                UNROLL
                for (int j = 0; j < W; ++j) {
                    const float low = a[j] * cosines[j] - b[j] * sines[j];
                    b[j] = b[j] * cosines[j] + a[j] * sines[j];
                    a[j] = low;
                }
            }
            store_whole(to, a);
            store_whole(to + half, b);
        }
    }
};
// A launch takes as many tokens as keep its indices below 2^31.
template <class T, bool splits>
void move_qkv(Stream stream, const QkvShape& s, T* qkv, const int32_t* positions, const Frequencies& frequencies, float sign,
              T* q, T* k, T* v) {
    const int64_t half = s.head_dim / 2, of_token = (s.heads() + kHeads - 1) / kHeads * half, most = INT32_MAX / of_token;
    const bool wide = is_wide(half, qkv, q, k, v);
    for (int64_t first = 0; first < s.tokens; first += most) {
        const int64_t tokens = s.tokens - first < most ? s.tokens - first : most;
        const int64_t queries = first * s.queries * s.head_dim, keys = first * s.keys * s.head_dim;
        const MoveQkv<T, splits> f = {static_cast<uint32_t>(s.queries),
                                      static_cast<uint32_t>(s.keys),
                                      static_cast<uint32_t>(half),
                                      positions ? positions + first : nullptr,
                                      frequencies,
                                      sign,
                                      qkv + first * s.heads() * s.head_dim,
                                      q + queries,
                                      k + keys,
                                      v + keys};
        if (wide) for_each(stream, tokens * of_token, true, InWholeChunks<MoveQkv<T, splits>>{f});
        else for_each(stream, tokens * of_token, f);
    }
}

// `x` with what is dropped as 0; elements from `column` on of a row.
template <int W>
__device__ __forceinline__ Floats<W> kept(const DropoutMask& mask, int64_t row, int64_t column, Floats<W> x) {
    const uint64_t key = dropout_row(mask.stream, static_cast<uint32_t>(mask.noise[row]));
    UNROLL
    for (int j = 0; j < W; ++j) {
        const uint32_t index = mask.first_index + static_cast<uint32_t>(column + j);
        const uint32_t bits = dropout_bits<uint32_t>(index, static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32));
        x[j] = bits >= mask.threshold ? x[j] * mask.scale : 0.0f;
    }
    return x;
}

template <class T>
struct DropoutOf {
    int64_t n;
    const T* x;
    DropoutMask mask;
    T* y;
    template <int W>
    __device__ void at(int64_t i) const {
        store(y + i, kept(mask, i / n, i % n, load<W>(x + i)));
    }
};

template <class S, class T>
struct BiasDropoutAddOf {
    int64_t n;
    const S* x;
    const T* b;
    const S* residual;
    DropoutMask mask;
    S* y;
    template <int W>
    __device__ void at(int64_t i) const {
        Floats<W> v = load<W>(x + i), sum = load<W>(residual + i);
        const Floats<W> of_column = load<W>(b + i % n);
        UNROLL
        for (int j = 0; j < W; ++j) v[j] += of_column[j];
        if (mask.noise) v = kept(mask, i / n, i % n, v);
        UNROLL
        for (int j = 0; j < W; ++j) sum[j] += v[j];
        store(y + i, sum);
    }
};

template <class T>
struct MaskPaddingOf {
    int64_t n, valid;
    float fill;
    const T* x;
    T* out;
    template <int W>
    __device__ void at(int64_t i) const {
        const int64_t column = i % n;
        Floats<W> v = load<W>(x + i);
        UNROLL
        for (int j = 0; j < W; ++j) v[j] = column + j < valid ? v[j] : fill;
        store(out + i, v);
    }
};

}  // namespace

template <class S, class T>
void embedding(Stream stream, int64_t tokens, int64_t hidden, const int32_t* ids, int64_t first_id, int64_t rows, const T* table,
               S* out) {
    for_each(stream, tokens * hidden, is_wide(hidden, table, out), EmbeddingOf<S, T>{ids, table, first_id, rows, hidden, out});
}

template <class T>
void embedding_backward(Stream stream, int64_t tokens, int64_t hidden, const int32_t* ids, int64_t first_id, int64_t rows,
                        const T* d_out, float* d_table, bool adds) {
    const bool wide = is_wide(hidden, d_out, d_table);
    const int64_t a_block = int64_t{kEachThreads} * (wide ? kWide : 1), column_blocks = (hidden + a_block - 1) / a_block;
    const Grid grid = {static_cast<unsigned>(column_blocks * (rows < kIdBlocks ? rows : kIdBlocks)), kEachThreads,
                       Listed::kBytes};
    if (grid.blocks == 0) return;
    launch(wide ? embedding_backward_kernel<kWide, T> : embedding_backward_kernel<1, T>, grid, stream, tokens, hidden,
           column_blocks, ids, first_id, rows, d_out, adds, d_table);
}
template <class T>
void rope(Stream stream, int64_t tokens, int64_t heads, int64_t half, const T* x, const int32_t* positions,
          const Frequencies& frequencies, float sign, T* out) {
    for_each(stream, tokens * heads * half, is_wide(half, x, out), RopeOf<T>{heads, half, x, positions, frequencies, sign, out});
}
template <class T>
void split_qkv(Stream stream, const QkvShape& shape, const T* qkv, const int32_t* positions, const Frequencies& frequencies,
               float sign, T* q, T* k, T* v) {
    move_qkv<T, true>(stream, shape, const_cast<T*>(qkv), positions, frequencies, sign, q, k, v);
}
template <class T>
void join_qkv(Stream stream, const QkvShape& shape, const T* q, const T* k, const T* v, const int32_t* positions,
              const Frequencies& frequencies, float sign, T* qkv) {
    move_qkv<T, false>(stream, shape, qkv, positions, frequencies, sign, const_cast<T*>(q), const_cast<T*>(k), const_cast<T*>(v));
}
template <class T>
void dropout(Stream stream, int64_t rows, int64_t n, const T* x, const DropoutMask& mask, T* y) {
    for_each(stream, rows * n, is_wide(n, x, y), DropoutOf<T>{n, x, mask, y});
}
template <class S, class T>
void bias_dropout_add(Stream stream, int64_t rows, int64_t n, const S* x, const T* b, const S* residual, const DropoutMask& mask,
                      S* y) {
    for_each(stream, rows * n, is_wide(n, x, b, residual, y), BiasDropoutAddOf<S, T>{n, x, b, residual, mask, y});
}
template <class T>
void mask_padding(Stream stream, int64_t rows, int64_t n, int64_t valid, float fill, const T* x, T* out) {
    for_each(stream, rows * n, is_wide(n, x, out), MaskPaddingOf<T>{n, valid, fill, x, out});
}

#define COPY(T)                                                                                                                 \
    template void embedding_backward<T>(Stream, int64_t, int64_t, const int32_t*, int64_t, int64_t, const T*, float*, bool);    \
    template void rope<T>(Stream, int64_t, int64_t, int64_t, const T*, const int32_t*, const Frequencies&, float, T*);          \
    template void split_qkv<T>(Stream, const QkvShape&, const T*, const int32_t*, const Frequencies&, float, T*, T*, T*);       \
    template void join_qkv<T>(Stream, const QkvShape&, const T*, const T*, const T*, const int32_t*, const Frequencies&, float, \
                              T*);                                                                                              \
    template void dropout<T>(Stream, int64_t, int64_t, const T*, const DropoutMask&, T*);                                       \
    template void mask_padding<T>(Stream, int64_t, int64_t, int64_t, float, const T*, T*);
LOCKSTEP_OF_ONE_TYPE(COPY)
#undef COPY
#define COPY(S, T)                                                                                           \
    template void embedding<S, T>(Stream, int64_t, int64_t, const int32_t*, int64_t, int64_t, const T*, S*); \
    template void bias_dropout_add<S, T>(Stream, int64_t, int64_t, const S*, const T*, const S*, const DropoutMask&, S*);
LOCKSTEP_ON_STREAM(COPY)
#undef COPY

}  // namespace lockstep::kernels::gpu
