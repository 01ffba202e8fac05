// The forward pass by tensor cores, and what all passes share. All queries of a head's group see a tile of keys that is read
// once.
#include "kernels/gpu/attention.h"

#include "kernels/gpu/attention_products.h"
#include "kernels/gpu/rows.h"

namespace lockstep::kernels::gpu {
namespace {

constexpr int kMostWarps = 4;

// 16 kRows queries a warp, tiles of kKeys. More of either would not fit into registers.
template <int D>
struct Sizes {
    static constexpr int kRows = D <= 128 ? 2 : 1, kKeys = D <= 128 ? 32 : 16, kStride = D + 8;
    static constexpr int64_t shared_bytes(int warps) {
        const int rows = 16 * kRows * warps;
        return int64_t{rows + kStages * 2 * kKeys} * kStride * 2 + kStages * Keys::bytes(kKeys) + Queries::bytes(rows);
    }
};

template <class T, int D>
__global__ void __launch_bounds__(kMostWarps* kLanes, 2) attention_kernel(Forward<T> a) {
    using Z = Sizes<D>;
    constexpr int M = Z::kRows, N = Z::kKeys, kTile = N * Z::kStride;
    SHARED_MEMORY(T, shared);
    const AttentionDropout& drop = a.mask.drop;
    const int d = static_cast<int>(a.shape.head_dim), kv_seq = static_cast<int>(a.shape.kv_seq),
              of_warp = static_cast<int>(thread()) / kLanes * 16 * M;
    const ForwardBlock own(a, 16 * M * static_cast<int>(threads()) / kLanes);
    T* const queries = shared;
    T* const tiles_begin = queries + own.size * Z::kStride;  // of each stage: keys, values
    int* const tokens_begin = reinterpret_cast<int*>(tiles_begin + kStages * 2 * kTile);
    const auto tokens_of = [&](int stage) { return Keys{tokens_begin + stage * Keys::bytes(N) / 4, N}; };
    const Queries own_tokens{tokens_begin + kStages * Keys::bytes(N) / 4, own.size};
    const auto place_of = [&](int row) { return own.place(row) * d; };
    const Rows keys = key_rows(a.shape, own.batch, own.head);
    const Tiles<false> tiles = own.tiles(a, N);
    const Range range = own.range(a, tiles);

    float o[M][D / 8][4] = {}, most[M][2], sum[M][2] = {};
    UNROLL
    for (int m = 0; m < M; ++m) most[m][0] = most[m][1] = -kInfinity;
    own.note_tokens(a, own_tokens);
    copy_rows<D>(a.q, d, own.first, own.rows, own.size, queries, [&](int row) { return own.query(a.shape, row); });
    const auto copy = [&](int tile, int stage) {
        T* const to = tiles_begin + stage * 2 * kTile;
        copy_rows<D>(a.k, d, tile * N, kv_seq, N, to, keys);
        copy_rows<D>(a.v, d, tile * N, kv_seq, N, to + kTile, keys);
        copy_tokens(a, own.batch, own.head, 0, tile * N, tokens_of(stage));
    };
    for_tiles<kStages>(tiles, range, copy, [&](int stage, int tile, bool is_open) {
        if (own.first + of_warp >= own.rows) return;  // the whole warp
        const T* const tile_begin = tiles_begin + stage * 2 * kTile;
        const Keys tokens = tokens_of(stage);
        float p[M][N / 8][4] = {};
        add_scores<D, T, M, N>(p, queries + of_warp * Z::kStride, tile_begin);
        for_elements<M, N>([&](int m, int n, int i) { p[m][n][i] *= a.shape.scale * kLog2E; });
        if (!is_open) {
            for_elements<M, N>([&](int m, int n, int i) {
                const int key = n * 8 + column_of(i), query = of_warp + m * 16 + row_of(i);
                const bool seen = tile * N + key < kv_seq && sees(own_tokens, query, tokens, key, a.window);
                p[m][n][i] = seen ? p[m][n][i] : -kInfinity;
            });
        }
        float top[M][2];
        UNROLL
        for (int m = 0; m < M; ++m) top[m][0] = most[m][0], top[m][1] = most[m][1];
        for_elements<M, N>([&](int m, int n, int i) { top[m][i / 2] = fmaxf(top[m][i / 2], p[m][n][i]); });
        UNROLL
        for (int m = 0; m < M; ++m) {
            UNROLL
            for (int half = 0; half < 2; ++half) {
                float& t = top[m][half];
                t = fmaxf(t, shuffle_xor(t, 1)), t = fmaxf(t, shuffle_xor(t, 2));
                const float shrinks = t == -kInfinity ? 1.0f : power_of_two(most[m][half] - t);
                most[m][half] = t, sum[m][half] *= shrinks;
                t = t == -kInfinity ? 0.0f : t;  // nothing is seen yet
                UNROLL
                for (int n = 0; n < D / 8; ++n) o[m][n][half * 2] *= shrinks, o[m][n][half * 2 + 1] *= shrinks;
            }
        }
        for_elements<M, N>([&](int m, int n, int i) {
            p[m][n][i] = power_of_two(p[m][n][i] - top[m][i / 2]);
            sum[m][i / 2] += p[m][n][i];
        });
        if (drop.noise) {
            for_elements<M, N>([&](int m, int n, int i) {
                const uint64_t row = own_tokens.dropout(of_warp + m * 16 + row_of(i));
                if (!keeps(drop, tokens.pos(n * 8 + column_of(i)), row)) p[m][n][i] = 0;
            });
        }
        add_products<D, T, M, N, D>(o, p, tile_begin + kTile);
    });

    const int64_t of_part = own.part * a.shape.batch * own.rows * own.heads;
    UNROLL
    for (int m = 0; m < M; ++m) {
        UNROLL
        for (int half = 0; half < 2; ++half) {
            float& total = sum[m][half];
            total += shuffle_xor(total, 1), total += shuffle_xor(total, 2);
            const int row = own.first + of_warp + m * 16 + row_of(2 * half);
            if (row < own.rows && thread() % 4 == 0)
                a.lse[of_part + own.place(row)] = total > 0 ? (most[m][half] + log2f(total)) * kLn2 : -kInfinity;
            const float factor = total > 0 ? drop.scale / total : 0.0f;
            UNROLL
            for (int n = 0; n < D / 8; ++n) o[m][n][half * 2] *= factor, o[m][n][half * 2 + 1] *= factor;
        }
    }
    if (a.outs) {
        write_sums(o, 1, d, own.first + of_warp, own.rows, a.outs, [&](int row) { return (of_part + own.place(row)) * d; });
        return;
    }
    put_sums<D>(o, 1, queries + of_warp * Z::kStride);
    block_barrier();
    write_rows<D>(queries, d, own.first, own.rows, own.size, a.out, place_of);
}

__global__ void __launch_bounds__(kBlock)
    bounds_kernel(int64_t batch, int tokens, int tile, const int32_t* pos, const int32_t* doc, Bounds* bounds) {
    const int64_t own = first_row<kLanes>(), tiles = (tokens + tile - 1) / tile;
    if (own >= batch * tiles) return;
    const int64_t before = own / tiles * tokens;
    const int begin = static_cast<int>(own % tiles) * tile;
    const Bounds b = bounds_of(pos + before, doc + before, begin, begin + tile < tokens ? begin + tile : tokens);
    if (thread() % kLanes == 0) bounds[own] = b;
}

// With `carries`, out and lse are one part more.
template <int W, bool carries, class T>
__global__ void __launch_bounds__(kBlock, 4)
    join_kernel(int parts, int64_t rows, int n, const float* outs, const float* lses, T* out, float* lse) {
    const int64_t row = first_row<kLanes>();
    if (row >= rows) return;
    const float before = carries ? shuffle_xor(lse[row], 0) : -kInfinity;  // every lane has read before one writes
    float most = before, sum = 0;
    NO_UNROLL
    for (int part = 0; part < parts; ++part) most = fmaxf(most, lses[part * rows + row]);
    if (most == -kInfinity) most = 0;  // nothing is seen
    if (carries) sum = expf(before - most);
    const float share = sum;
    NO_UNROLL
    for (int part = 0; part < parts; ++part) sum += expf(lses[part * rows + row] - most);
    if (thread() % kLanes == 0) lse[row] = sum > 0 ? most + logf(sum) : -kInfinity;
    for_pieces<kLanes, W>(n, [&](int, int i) {
        Floats<W> total = {};
        if (carries && sum > 0) {
            const Floats<W> x = load<W>(out + row * n + i);
            UNROLL
            for (int j = 0; j < W; ++j) total[j] = share / sum * x[j];
        }
        for (int part = 0; part < parts; ++part) {
            const float weight = sum > 0 ? expf(lses[part * rows + row] - most) / sum : 0.0f;
            const Floats<W> x = load<W>(outs + (part * rows + row) * n + i);
            UNROLL
            for (int j = 0; j < W; ++j) total[j] += weight * x[j];
        }
        store(out + row * n + i, total);
    });
}

template <class T, int D>
void start_products(Stream stream, const Forward<T>& a) {
    const AttentionShape& s = a.shape;
    constexpr int kRows = 16 * Sizes<D>::kRows;
    static_assert(Sizes<D>::shared_bytes(kMostWarps) <= kSharedBytesAnywhere);
    const int64_t rows = s.seq * s.group, wanted = tiles_of(rows, kRows), warps = wanted < kMostWarps ? wanted : kMostWarps;
    find_bounds(stream, s.batch, s.kv_seq, Sizes<D>::kKeys, a.mask.kv_pos, a.mask.kv_doc, a.bounds);
    const Grid grid = {static_cast<unsigned>(ForwardBlock::blocks(a, warps * kRows)), static_cast<unsigned>(warps * kLanes),
                       static_cast<unsigned>(Sizes<D>::shared_bytes(static_cast<int>(warps)))};
    launch(attention_kernel<T, D>, grid, stream, a);
}

template <class T>
void start(Stream stream, const Forward<T>& a, bool wide) {
    const int64_t d = a.shape.head_dim;
    if constexpr (sizeof(T) == 4) start_plain(stream, a, wide);
    else if (!wide) start_plain(stream, a, wide);
    else if (d <= 64) start_products<T, 64>(stream, a);
    else if (d <= 96) start_products<T, 96>(stream, a);
    else if (d <= 128) start_products<T, 128>(stream, a);
    else start_products<T, 256>(stream, a);
}

template <bool carries, class T, class R>
void join(Stream stream, bool wide, int64_t parts, int64_t rows, int64_t d, const Forward<T>& a, R* out, float* lse) {
    launch(wide ? join_kernel<kWide, carries, R> : join_kernel<1, carries, R>, grid_of_rows(rows, kLanes), stream, parts, rows, d,
           a.outs, a.lse, out, lse);
}

}  // namespace

void find_bounds(Stream stream, int64_t batch, int64_t tokens, int tile, const int32_t* pos, const int32_t* doc, Bounds* bounds) {
    const int64_t tiles = batch * tiles_of(tokens, tile);
    if (tiles > 0) launch(bounds_kernel, grid_of_rows(tiles, kLanes), stream, batch, tokens, tile, pos, doc, bounds);
}

template <class T>
void attention(Stream stream, const AttentionShape& shape, const AttentionMask& mask, const T* q, const T* k, const T* v, T* out,
               float* lse, void* workspace) {
    const int64_t rows = shape.batch * shape.seq * shape.kv_heads * shape.group, parts = parts_of_keys(shape), d = shape.head_dim;
    if (rows == 0) return;
    Forward<T> a{shape, mask, window_of(shape), static_cast<Bounds*>(workspace), static_cast<int>(parts), q, k, v, out, lse};
    if (parts > 1) {
        a.outs = reinterpret_cast<float*>(static_cast<char*>(workspace) + bytes_of_bounds(shape.batch, shape.kv_seq));
        a.lse = a.outs + parts * rows * d;
    }
    const bool wide = is_wide(d, q, k, v, out);
    start(stream, a, wide);
    if (parts > 1) join<false>(stream, wide, parts, rows, d, a, out, lse);
}

template <class T>
void attention_block(Stream stream, const AttentionShape& shape, const AttentionMask& mask, const T* q, const T* k, const T* v,
                     bool carries, float* out, float* lse, void* workspace) {
    const int64_t rows = shape.batch * shape.seq * shape.kv_heads * shape.group, parts = parts_of_keys(shape), d = shape.head_dim;
    if (rows == 0) return;
    Forward<T> a{shape, mask, window_of(shape), static_cast<Bounds*>(workspace), static_cast<int>(parts), q, k, v, nullptr, lse};
    a.outs = out;
    if (parts > 1 || carries) {
        a.outs = reinterpret_cast<float*>(static_cast<char*>(workspace) + bytes_of_bounds(shape.batch, shape.kv_seq));
        a.lse = a.outs + parts * rows * d;
    }
    const bool wide = is_wide(d, q, k, v, out);
    start(stream, a, wide);
    if (carries) join<true>(stream, wide, parts, rows, d, a, out, lse);
    else if (parts > 1) join<false>(stream, wide, parts, rows, d, a, out, lse);
}

#define COPY(T)                                                                                                               \
    template void attention<T>(Stream, const AttentionShape&, const AttentionMask&, const T*, const T*, const T*, T*, float*, \
                               void*);                                                                                        \
    template void attention_block<T>(Stream, const AttentionShape&, const AttentionMask&, const T*, const T*, const T*, bool, \
                                     float*, float*, void*);
LOCKSTEP_OF_ONE_TYPE(COPY)
#undef COPY

}  // namespace lockstep::kernels::gpu
