#include "kernels/gpu/tokens.h"

#include "base/random.h"
#include "kernels/gpu/each.h"

namespace lockstep::kernels::gpu {
namespace {

template <class S, class T>
struct EmbeddingOf {
    const int32_t* ids;
    const T* table;
    int64_t first_id, rows;
    uint32_t hidden;
    S* out;
    template <int W>
    __device__ void at(int64_t i) const {
        const uint32_t token = static_cast<uint32_t>(i) / hidden;
        const int64_t row = ids[token] - first_id;
        Floats<W> x = {};
        if (row >= 0 && row < rows) x = load<W>(table + row * hidden + (static_cast<uint32_t>(i) - token * hidden));
        store(out + i, x);
    }
};

constexpr uint32_t kIdBlocks = 1024;  // that share the ids of the vocabulary between them; a power of two
constexpr int kOfThread = 8, kListed = kEachThreads * kOfThread, kWarps = kEachThreads / kLanes;

// Of kListed tokens those whose ids a block has, in order: each with its row, and with its place among those of its row.
struct Listed {
    int *token, *row, *next;  // next: the entry with the next token of the row, or -1
    int *is_first, *counts;   // counts: of a warp

    static constexpr unsigned kBytes = (4 * kListed + kWarps) * sizeof(int);
    __device__ explicit Listed(int* shared)
        : token(shared), row(token + kListed), next(row + kListed), is_first(next + kListed), counts(is_first + kListed) {}

    // For tokens from `begin` on, of which a thread looks at kOfThread; is_own(row). Their number.
    template <class RowOf, class IsOwn>
    __device__ int find(int64_t begin, int64_t tokens, RowOf row_of, IsOwn is_own) const {
        const int own = static_cast<int>(thread()), lane = own % kLanes, warp = own / kLanes, first = own * kOfThread;
        const int64_t left = tokens - begin;
        uint32_t rows[kOfThread];
        bool is_mine[kOfThread];
        int found = 0;
        UNROLL
        for (int j = 0; j < kOfThread; ++j) {
            rows[j] = first + j < left ? row_of(begin + first + j) : 0;
            is_mine[j] = first + j < left && is_own(rows[j]);
            found += is_mine[j] ? 1 : 0;
        }
        int before = 0, all = found;  // of lanes below this one, and of those that have exchanged
        UNROLL
        for (int mask = 1; mask < kLanes; mask *= 2) {
            const int other = shuffle_xor(all, mask);
            before += lane & mask ? other : 0, all += other;
        }
        block_barrier();  // the last list has been read
        if (lane == 0) counts[warp] = all;
        block_barrier();
        all = 0;
        UNROLL
        for (int w = 0; w < kWarps; ++w) before += w < warp ? counts[w] : 0, all += counts[w];
        UNROLL
        for (int j = 0; j < kOfThread; ++j) {
            if (!is_mine[j]) continue;
            token[before] = first + j, row[before] = static_cast<int>(rows[j]), ++before;
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
// nobody else adds to its rows, and each has one order of sums, that of tokens. Rows are counted from first_id; ids before it and
// beyond `rows` are larger.
template <int W, class T>
__global__ void __launch_bounds__(kEachThreads, 4)
    embedding_backward_kernel(int64_t tokens, int64_t hidden, unsigned column_blocks, const int32_t* ids, uint32_t first_id,
                              uint32_t rows, const T* d_out, bool adds, float* d_table) {
    constexpr int kAhead = 4;  // gradients that are on their way at once
    SHARED_MEMORY(int, shared);
    const Listed list(shared);
    const uint32_t part = block() / column_blocks, parts = blocks() / column_blocks;
    const int64_t i = static_cast<int64_t>(block() % column_blocks * kEachThreads + thread()) * W;
    if (!adds && i < hidden) {
        for (uint32_t row = part; row < rows; row += parts) store(d_table + row * hidden + i, Floats<W>{});
    }
    for (int64_t begin = 0; begin < tokens; begin += kListed) {
        const int count = list.find(
            begin, tokens, [&](int64_t t) { return static_cast<uint32_t>(ids[t]) - first_id; },
            [&](uint32_t row) { return row < rows && (row & (parts - 1)) == part; });
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
    uint32_t heads, half;
    const T* x;
    const int32_t* positions;
    Frequencies frequencies;
    float sign;
    T* out;
    template <int W>
    __device__ void at(int64_t i) const {
        const uint32_t head = static_cast<uint32_t>(i) / half, first = static_cast<uint32_t>(i) % half;
        const int64_t from = static_cast<int64_t>(head) * 2 * half + first;
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
enum class Qkv { Split, Join, Rotate };  // Rotate: to a row like it, or in place
template <class T, Qkv how>
struct MoveQkv {
    uint32_t queries, keys, half, moved;  // moved: the first heads of a row
    const int32_t* positions;
    Frequencies frequencies;
    float sign;
    T *qkv, *q, *k, *v;  // q: of Rotate, the other row

    __device__ uint32_t groups() const { return (moved + kHeads - 1) / kHeads; }
    __device__ T* apart(int64_t token, uint32_t head) const {
        if (how == Qkv::Rotate) return q + (token * (queries + 2 * keys) + head) * 2 * half;
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
            if (head >= moved) continue;
            T *const together = qkv + (token * heads + head) * 2 * half + first, *const other = apart(token, head) + first;
            const T* const from = how == Qkv::Join ? other : together;
            T* const to = how == Qkv::Join ? together : other;
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
template <class T, Qkv how>
void move_qkv(Stream stream, const QkvShape& s, T* qkv, const int32_t* positions, const Frequencies& frequencies, float sign,
              T* q, T* k, T* v) {
    const int64_t moved = how == Qkv::Rotate && q == qkv ? s.queries + s.keys : s.heads();
    const int64_t half = s.head_dim / 2, of_token = (moved + kHeads - 1) / kHeads * half, most = INT32_MAX / of_token;
    const bool wide = is_wide(half, qkv, q, k, v);
    for (int64_t first = 0; first < s.tokens; first += most) {
        const int64_t tokens = s.tokens - first < most ? s.tokens - first : most;
        const int64_t queries = first * (how == Qkv::Rotate ? s.heads() : s.queries) * s.head_dim,
                      keys = first * s.keys * s.head_dim;
        const MoveQkv<T, how> f = {static_cast<uint32_t>(s.queries),
                                   static_cast<uint32_t>(s.keys),
                                   static_cast<uint32_t>(half),
                                   static_cast<uint32_t>(moved),
                                   positions ? positions + first : nullptr,
                                   frequencies,
                                   sign,
                                   qkv + first * s.heads() * s.head_dim,
                                   q + queries,
                                   k + keys,
                                   v + keys};
        if (wide) for_each(stream, tokens * of_token, true, InWholeChunks<MoveQkv<T, how>>{f});
        else for_each(stream, tokens * of_token, f);
    }
}

DropoutMask from_row(DropoutMask mask, int64_t row) {
    if (mask.noise) mask.noise += row;
    return mask;
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
    uint32_t n;
    const T* x;
    DropoutMask mask;
    T* y;
    template <int W>
    __device__ void at(int64_t i) const {
        store(y + i, kept(mask, static_cast<uint32_t>(i) / n, static_cast<uint32_t>(i) % n, load<W>(x + i)));
    }
};

template <class S, class T>
struct BiasDropoutAddOf {
    uint32_t n;
    const S* x;
    const T* b;
    const S* residual;
    DropoutMask mask;
    S* y;
    template <int W>
    __device__ void at(int64_t i) const {
        Floats<W> v = load<W>(x + i), sum = load<W>(residual + i);
        const uint32_t row = static_cast<uint32_t>(i) / n, column = static_cast<uint32_t>(i) % n;
        const Floats<W> of_column = load<W>(b + column);
        UNROLL
        for (int j = 0; j < W; ++j) v[j] += of_column[j];
        if (mask.noise) v = kept(mask, row, column, v);
        UNROLL
        for (int j = 0; j < W; ++j) sum[j] += v[j];
        store(y + i, sum);
    }
};

template <class T>
struct MaskPaddingOf {
    uint32_t n, valid;
    float fill;
    const T* x;
    T* out;
    template <int W>
    __device__ void at(int64_t i) const {
        const uint32_t column = static_cast<uint32_t>(i) % n;
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
    for_each_of_rows(stream, tokens, hidden, is_wide(hidden, table, out), [&](int64_t first) {
        return EmbeddingOf<S, T>{ids + first, table, first_id, rows, static_cast<uint32_t>(hidden), out + first * hidden};
    });
}

template <class T>
void embedding_backward(Stream stream, int64_t tokens, int64_t hidden, const int32_t* ids, int64_t first_id, int64_t rows,
                        const T* d_out, float* d_table, bool adds) {
    const bool wide = is_wide(hidden, d_out, d_table);
    const int64_t a_block = int64_t{kEachThreads} * (wide ? kWide : 1), column_blocks = (hidden + a_block - 1) / a_block;
    if (rows * column_blocks == 0) return;
    const uint32_t parts = rows < kIdBlocks ? std::bit_floor(static_cast<uint32_t>(rows)) : kIdBlocks;
    launch(wide ? embedding_backward_kernel<kWide, T> : embedding_backward_kernel<1, T>,
           {static_cast<unsigned>(column_blocks * parts), kEachThreads, Listed::kBytes}, stream, tokens, hidden, column_blocks,
           ids, first_id, rows, d_out, adds, d_table);
}
template <class T>
void rope(Stream stream, int64_t tokens, int64_t heads, int64_t half, const T* x, const int32_t* positions,
          const Frequencies& frequencies, float sign, T* out) {
    for_each_of_rows(stream, tokens, heads * half, is_wide(half, x, out), [&](int64_t first) {
        const int64_t at = first * heads * 2 * half;
        return RopeOf<T>{
            static_cast<uint32_t>(heads), static_cast<uint32_t>(half), x + at, positions + first, frequencies, sign, out + at};
    });
}
template <class T>
void split_qkv(Stream stream, const QkvShape& shape, const T* qkv, const int32_t* positions, const Frequencies& frequencies,
               float sign, T* q, T* k, T* v) {
    move_qkv<T, Qkv::Split>(stream, shape, const_cast<T*>(qkv), positions, frequencies, sign, q, k, v);
}
template <class T>
void join_qkv(Stream stream, const QkvShape& shape, const T* q, const T* k, const T* v, const int32_t* positions,
              const Frequencies& frequencies, float sign, T* qkv) {
    move_qkv<T, Qkv::Join>(stream, shape, qkv, positions, frequencies, sign, const_cast<T*>(q), const_cast<T*>(k),
                           const_cast<T*>(v));
}
template <class T>
void rope_qkv(Stream stream, const QkvShape& shape, const T* qkv, const int32_t* positions, const Frequencies& frequencies,
              float sign, T* out) {
    move_qkv<T, Qkv::Rotate>(stream, shape, const_cast<T*>(qkv), positions, frequencies, sign, out, out, out);
}
template <class T>
void dropout(Stream stream, int64_t rows, int64_t n, const T* x, const DropoutMask& mask, T* y) {
    for_each_of_rows(stream, rows, n, is_wide(n, x, y), [&](int64_t first) {
        return DropoutOf<T>{static_cast<uint32_t>(n), x + first * n, from_row(mask, first), y + first * n};
    });
}
template <class S, class T>
void bias_dropout_add(Stream stream, int64_t rows, int64_t n, const S* x, const T* b, const S* residual, const DropoutMask& mask,
                      S* y) {
    for_each_of_rows(stream, rows, n, is_wide(n, x, b, residual, y), [&](int64_t first) {
        const int64_t at = first * n;
        return BiasDropoutAddOf<S, T>{static_cast<uint32_t>(n), x + at, b, residual + at, from_row(mask, first), y + at};
    });
}
template <class T>
void mask_padding(Stream stream, int64_t rows, int64_t n, int64_t valid, float fill, const T* x, T* out) {
    for_each_of_rows(stream, rows, n, is_wide(n, x, out), [&](int64_t first) {
        return MaskPaddingOf<T>{static_cast<uint32_t>(n), static_cast<uint32_t>(valid), fill, x + first * n, out + first * n};
    });
}

#define COPY(T)                                                                                                                 \
    template void embedding_backward<T>(Stream, int64_t, int64_t, const int32_t*, int64_t, int64_t, const T*, float*, bool);    \
    template void rope<T>(Stream, int64_t, int64_t, int64_t, const T*, const int32_t*, const Frequencies&, float, T*);          \
    template void split_qkv<T>(Stream, const QkvShape&, const T*, const int32_t*, const Frequencies&, float, T*, T*, T*);       \
    template void join_qkv<T>(Stream, const QkvShape&, const T*, const T*, const T*, const int32_t*, const Frequencies&, float, \
                              T*);                                                                                              \
    template void rope_qkv<T>(Stream, const QkvShape&, const T*, const int32_t*, const Frequencies&, float, T*);                \
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
