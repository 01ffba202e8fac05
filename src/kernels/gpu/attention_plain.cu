// Attention by multiply-adds of floats: for float32, and for rows that cannot be read 16 bytes at a time. Everything is float
// in shared memory. A warp owns kOwn queries, or keys; in tiles of the other side each lane has a row; of sums over a tile each
// lane has every 32nd column.
#include <algorithm>

#include "kernels/gpu/attention.h"
#include "kernels/gpu/attention_blocks.h"
#include "kernels/gpu/rows.h"

namespace lockstep::kernels::gpu {
namespace {

constexpr int kOwn = 8, kTile = kLanes, kColumns = static_cast<int>(kMostHeadDim) / kLanes, kMostWarps = 4;

// Between rows of shared memory, which are read four floats at a time by lanes that have a row each.
constexpr int stride_of(int d) { return (d + 3) / 4 * 4 + 4; }

// n rows from `begin` on; 0 for what does not exist.
template <int W, class T, class Place>
__device__ __forceinline__ void read_rows(const T* x, int d, int begin, int count, int n, float* to, Place place_of) {
    const int pieces = (d + 3) / 4 * 4 / W;
    for (int i = static_cast<int>(thread()); i < n * pieces; i += static_cast<int>(threads())) {
        const int row = i / pieces, column = i % pieces * W;
        Floats<W> v = {};
        if (begin + row < count && column < d) v = load<W>(x + place_of(begin + row) + column);
        store(to + row * stride_of(d) + column, v);
    }
}
template <int W, class T, class Place>
__device__ __forceinline__ void put_rows(const float* from, int d, int begin, int count, int n, T* x, Place place_of,
                                         bool adds = false) {
    const int pieces = d / W;
    for (int i = static_cast<int>(thread()); i < n * pieces; i += static_cast<int>(threads())) {
        const int row = i / pieces, column = i % pieces * W;
        if (begin + row >= count) continue;
        T* const to = x + place_of(begin + row) + column;
        Floats<W> v = load<W>(from + row * stride_of(d) + column);
        if (adds) {
            const Floats<W> before = load<W>(to);
            UNROLL
            for (int j = 0; j < W; ++j) v[j] += before[j];
        }
        store(to, v);
    }
}

// sums[r] += own row r times the lane's row of the tile.
__device__ __forceinline__ void add_scores(float (&sums)[kOwn], const float* own, const float* tile, int d) {
    const int stride = stride_of(d);
    const float* const other = tile + static_cast<int>(thread()) % kLanes * stride;
    // Unrolled, it would need more registers than there are; as below.
    NO_UNROLL
    for (int i = 0; i < d; i += 4) {
        const Floats<4> y = load<4>(other + i);
        UNROLL
        for (int r = 0; r < kOwn; ++r) {
            const Floats<4> x = load<4>(own + r * stride + i);
            UNROLL
            for (int j = 0; j < 4; ++j) sums[r] += x[j] * y[j];
        }
    }
}
// Sums of a warp's rows: of row r, columns c * 32 + lane.
struct Sums {
    float of[kOwn][kColumns] = {};

    // += weights [kOwn, kTile] of the warp's rows times the tile.
    __device__ __forceinline__ void add(const float* weights, const float* tile, int d) {
        const int lane = static_cast<int>(thread()) % kLanes, stride = stride_of(d);
        NO_UNROLL
        for (int i = 0; i < kTile; ++i) {
            float own[kOwn];
            UNROLL
            for (int r = 0; r < kOwn; ++r) own[r] = weights[r * kTile + i];
            UNROLL
            for (int c = 0; c < kColumns; ++c) {
                if (c * kLanes + lane >= d) continue;
                const float x = tile[i * stride + c * kLanes + lane];
                UNROLL
                for (int r = 0; r < kOwn; ++r) of[r][c] += own[r] * x;
            }
        }
    }
    __device__ __forceinline__ void multiply(int r, float factor) {
        UNROLL
        for (int c = 0; c < kColumns; ++c) of[r][c] *= factor;
    }
    __device__ __forceinline__ void put(float factor, float* rows, int d) const {
        const int lane = static_cast<int>(thread()) % kLanes;
        UNROLL
        for (int r = 0; r < kOwn; ++r) {
            UNROLL
            for (int c = 0; c < kColumns; ++c) {
                if (c * kLanes + lane < d) rows[r * stride_of(d) + c * kLanes + lane] = of[r][c] * factor;
            }
        }
    }
};

// Own queries; a tile, first of keys, then of values; weights of the tile; what is to be known of both.
constexpr unsigned forward_bytes(const AttentionShape& s, int64_t warps) {
    const int64_t rows = kOwn * warps;
    return static_cast<unsigned>((rows + kTile) * stride_of(static_cast<int>(s.head_dim)) * 4 + rows * kTile * 4) +
           Keys::bytes(kTile) + Queries::bytes(static_cast<int>(rows));
}
// Own rows, and a tile, two of each; two weights.
constexpr unsigned backward_bytes(const AttentionShape& s, int64_t warps) {
    const int64_t rows = kOwn * warps, most = rows > kTile ? rows : kTile;
    return static_cast<unsigned>(2 * (rows + kTile) * stride_of(static_cast<int>(s.head_dim)) * 4 + 2 * rows * kTile * 4) +
           2 * Queries::bytes(static_cast<int>(most));
}
#ifndef __HIPCC__  // AMD's GPUs have less shared memory: they refuse the launch of longer heads
static_assert(backward_bytes({.head_dim = kMostHeadDim}, 1) <= kSharedBytesAnywhere);
#endif
// Half of what a processor of an sm_80 has, or of a gfx90a. The same on any of NVIDIA's: the parts of a forward, and with them
// its bits, depend on the number of warps.
#if defined(__HIPCC__)
constexpr unsigned kWantedBytes = 32 << 10;
#else
constexpr unsigned kWantedBytes = 163 << 9;
static_assert(kWantedBytes <= kSharedBytesAnywhere);
#endif
// Of a block: as many as `rows` need, and as leave room for another block.
template <class Bytes>
int64_t warps_of(const AttentionShape& s, int64_t rows, Bytes bytes) {
    int64_t warps = std::clamp<int64_t>(tiles_of(rows, kOwn), 1, kMostWarps);
    while (warps > 1 && bytes(s, warps) > kWantedBytes) --warps;
    return warps;
}

template <class T, int W>
__global__ void __launch_bounds__(kMostWarps* kLanes, 2) plain_kernel(Forward<T> a) {
    SHARED_MEMORY(float, shared);
    const AttentionDropout& drop = a.mask.drop;
    const int d = static_cast<int>(a.shape.head_dim), kv_seq = static_cast<int>(a.shape.kv_seq), stride = stride_of(d),
              lane = static_cast<int>(thread()) % kLanes, of_warp = static_cast<int>(thread()) / kLanes * kOwn;
    const ForwardBlock own(a, kOwn * static_cast<int>(threads()) / kLanes);
    float* const queries = shared;
    float* const tile_begin = queries + own.size * stride;
    float* const weights = tile_begin + kTile * stride;
    const Keys tokens{reinterpret_cast<int*>(weights + own.size * kTile), kTile};
    const Queries own_tokens{tokens.begin + Keys::bytes(kTile) / 4, own.size};
    const auto place_of = [&](int row) { return own.place(row) * d; };
    const Rows keys = key_rows(a.shape, own.batch, own.head);
    const Tiles<false> tiles = own.tiles(a, kTile);
    const Range range = own.range(a, tiles);

    Sums o;
    float most[kOwn], sum[kOwn] = {};
    UNROLL
    for (int r = 0; r < kOwn; ++r) most[r] = -kInfinity;
    own.note_tokens(a, own_tokens);
    read_rows<W>(a.q, d, own.first, own.rows, own.size, queries, [&](int row) { return own.query(a.shape, row); });
    const auto copy = [&](int tile, int) {
        read_rows<W>(a.k, d, tile * kTile, kv_seq, kTile, tile_begin, keys);
        copy_tokens(a, own.batch, own.head, 0, tile * kTile, tokens);
    };
    for_tiles<1>(tiles, range, copy, [&](int, int tile, bool is_open) {
        float p[kOwn] = {};
        add_scores(p, queries + of_warp * stride, tile_begin, d);
        UNROLL
        for (int r = 0; r < kOwn; ++r) {
            const bool seen = is_open || (tile * kTile + lane < kv_seq && sees(own_tokens, of_warp + r, tokens, lane, a.window));
            const float x = seen ? p[r] * a.shape.scale : -kInfinity;
            float top = fmaxf(most[r],
                              reduce_over<kLanes>(x, static_cast<float*>(nullptr), [](float u, float v) { return fmaxf(u, v); }));
            const float shrinks = top == -kInfinity ? 1.0f : expf(most[r] - top);
            most[r] = top, top = top == -kInfinity ? 0.0f : top;
            o.multiply(r, shrinks);
            p[r] = expf(x - top), sum[r] = sum[r] * shrinks + p[r];
            if (drop.noise && !keeps(drop, tokens.pos(lane), own_tokens.dropout(of_warp + r))) p[r] = 0;
            weights[(of_warp + r) * kTile + lane] = p[r];
        }
        block_barrier();
        read_rows<W>(a.v, d, tile * kTile, kv_seq, kTile, tile_begin, keys);
        block_barrier();
        o.add(weights + of_warp * kTile, tile_begin, d);
    });

    const int64_t of_part = own.part * a.shape.batch * own.rows * own.heads;
    UNROLL
    for (int r = 0; r < kOwn; ++r) {
        const float total = sum_over<kLanes>(sum[r], static_cast<float*>(nullptr));
        const int row = own.first + of_warp + r;
        o.multiply(r, total > 0 ? drop.scale / total : 0.0f);
        if (lane == 0 && row < own.rows) a.lse[of_part + own.place(row)] = total > 0 ? most[r] + logf(total) : -kInfinity;
    }
    o.put(1, queries + of_warp * stride, d);
    block_barrier();
    if (a.outs)
        put_rows<W>(queries, d, own.first, own.rows, own.size, a.outs, [&](int row) { return (of_part + own.place(row)) * d; });
    else put_rows<W>(queries, d, own.first, own.rows, own.size, a.out, place_of);
}

// As attention_backward_kernel.
template <class T, class R, int W, bool own_keys>
__global__ void __launch_bounds__(kMostWarps* kLanes, 2) plain_backward_kernel(Backward<T, R> a) {
    using Own = std::conditional_t<own_keys, Keys, Queries>;
    using Other = std::conditional_t<own_keys, Queries, Keys>;
    SHARED_MEMORY(float, shared);
    const AttentionDropout& drop = a.mask.drop;
    const int d = static_cast<int>(a.shape.head_dim), stride = stride_of(d), lane = static_cast<int>(thread()) % kLanes,
              of_warp = static_cast<int>(thread()) / kLanes * kOwn, size = kOwn * static_cast<int>(threads()) / kLanes;
    const BackwardBlock<own_keys> own(a, size);
    float* const own_begin = shared;
    float* const tile_begin = own_begin + 2 * size * stride;
    float* const weights = tile_begin + 2 * kTile * stride;
    const Own own_tokens{reinterpret_cast<int*>(weights + 2 * size * kTile), size};
    const Other tokens{own_tokens.begin + Own::bytes(size) / 4, kTile};
    const Tiles<own_keys> tiles = own.tiles(a, size, kTile);
    const Range range = seen_range(tiles);

    Sums d0, d1;
    read_rows<W>(own_keys ? a.k : a.q, d, own.first, own.rows.count, size, own_begin, own.rows);
    read_rows<W>(own_keys ? a.v : a.d_out, d, own.first, own.rows.count, size, own_begin + size * stride, own.second_rows);
    copy_tokens(a, own.batch, own.head, own.member, own.first, own_tokens);
    for (int member = own.member; member <= own.last_member; ++member) {
        const Rows rows = own.other_rows(a.shape, member), second = own.second_other_rows(a.shape, member);
        const auto copy = [&](int tile, int) {
            read_rows<W>(own_keys ? a.q : a.k, d, tile * kTile, rows.count, kTile, tile_begin, rows);
            read_rows<W>(own_keys ? a.d_out : a.v, d, tile * kTile, rows.count, kTile, tile_begin + kTile * stride, second);
            copy_tokens(a, own.batch, own.head, member, tile * kTile, tokens);
        };
        for_tiles<1>(tiles, range, copy, [&](int, int tile, bool is_open) {
            float p[kOwn] = {}, ds[kOwn] = {};
            add_scores(p, own_begin + of_warp * stride, tile_begin, d);
            add_scores(ds, own_begin + (size + of_warp) * stride, tile_begin + kTile * stride, d);
            UNROLL
            for (int r = 0; r < kOwn; ++r) {
                const auto weigh = [&](const Queries& queries, int query, const Keys& keys, int key) {
                    const bool seen = is_open || (tile * kTile + lane < rows.count && sees(queries, query, keys, key, a.window));
                    const bool kept = !drop.noise || keeps(drop, keys.pos(key), queries.dropout(query));
                    p[r] = seen ? expf(p[r] * a.shape.scale - queries.lse(query)) : 0.0f;
                    ds[r] = p[r] * ((kept ? ds[r] * drop.scale : 0.0f) - queries.delta(query));
                    p[r] = kept ? p[r] : 0.0f;
                };
                with_pair(own_tokens, of_warp + r, tokens, lane, weigh);
                weights[(of_warp + r) * kTile + lane] = ds[r];
                if (own_keys) weights[(size + of_warp + r) * kTile + lane] = p[r];
            }
            block_barrier();
            d0.add(weights + of_warp * kTile, tile_begin, d);
            if (own_keys) d1.add(weights + (size + of_warp) * kTile, tile_begin + kTile * stride, d);
        });
    }
    d0.put(a.shape.scale, own_begin + of_warp * stride, d);
    if (own_keys) d1.put(drop.scale, own_begin + (size + of_warp) * stride, d);
    block_barrier();
    put_rows<W>(own_begin, d, own.first, own.rows.count, size, own_keys ? a.d_k : a.d_q, own.rows, !own_keys && a.adds);
    if (own_keys) put_rows<W>(own_begin + size * stride, d, own.first, own.rows.count, size, a.d_v, own.rows);
}

template <class T, class R, int W, bool own_keys>
void start_side(Stream stream, const Backward<T, R>& a) {
    const int64_t warps = warps_of(a.shape, own_keys ? a.shape.kv_seq : a.shape.seq, backward_bytes);
    const int64_t blocks = BackwardBlock<own_keys>::blocks(a.shape, kOwn * warps);
    find_other_bounds<own_keys>(stream, a, kTile);
    if (blocks > 0)
        launch(plain_backward_kernel<T, R, W, own_keys>,
               {static_cast<unsigned>(blocks), static_cast<unsigned>(warps * kLanes), backward_bytes(a.shape, warps)}, stream, a);
}
template <class T, class R, int W>
void start_backward(Stream stream, const Backward<T, R>& a) {
    start_side<T, R, W, false>(stream, a);
    start_side<T, R, W, true>(stream, a);
}

// What is stored in 16 bits comes here only where it cannot be read wide.
template <class T>
constexpr int kWidest = sizeof(T) == 4 ? kWide : 1;

}  // namespace

template <class T>
void start_plain(Stream stream, const Forward<T>& a, bool wide) {
    const AttentionShape& s = a.shape;
    const int64_t warps = warps_of(s, s.seq * s.group, forward_bytes);
    find_bounds(stream, s.batch, s.kv_seq, kTile, a.mask.kv_pos, a.mask.kv_doc, a.bounds);
    const Grid grid = {static_cast<unsigned>(ForwardBlock::blocks(a, kOwn * warps)), static_cast<unsigned>(warps * kLanes),
                       forward_bytes(s, warps)};
    launch(wide ? plain_kernel<T, kWidest<T>> : plain_kernel<T, 1>, grid, stream, a);
}
template <class T, class R>
void start_plain(Stream stream, const Backward<T, R>& a, bool wide) {
    if (wide) start_backward<T, R, kWidest<T>>(stream, a);
    else start_backward<T, R, 1>(stream, a);
}

#define COPY(T)                                                    \
    template void start_plain<T>(Stream, const Forward<T>&, bool); \
    template void start_plain<T, T>(Stream, const Backward<T, T>&, bool);
LOCKSTEP_OF_ONE_TYPE(COPY)
#undef COPY
#define COPY(T) template void start_plain<T, float>(Stream, const Backward<T, float>&, bool);
LOCKSTEP_OF_16_BITS(COPY)
#undef COPY

}  // namespace lockstep::kernels::gpu
