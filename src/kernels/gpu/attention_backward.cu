// The backward pass. With p = exp(scale q k - lse), delta = the sum of d_out out over head_dim, and ds = p (d_out v - delta):
// d_q = scale ds k, d_k = scale ds q, d_v = p d_out. Dropout multiplies p in d_v, and d_out v, with 0 or its scale.
#include "kernels/gpu/attention.h"
#include "kernels/gpu/attention_products.h"
#include "kernels/gpu/rows.h"

namespace lockstep::kernels::gpu {
namespace {

constexpr int kMostThreads = 128;

// A warp has 16 kRows of a block's own queries or keys, and tiles of kOther of the other side. Where there are parts, as many
// warps compute the same probabilities, each for a part of the columns of results: their sums would not fit into registers.
template <int D, bool own_keys>
struct Sizes {
    static constexpr int kRows = D <= 64 && !own_keys ? 2 : 1, kOther = D <= 128 ? 32 : 16, kParts = own_keys && D > 128 ? 2 : 1,
                         kRowWarps = D <= 128 ? 4 : 2, kOwn = 16 * kRows * kRowWarps, kStride = D + 8,
                         kThreads = kRowWarps * kParts * kLanes;
    using Own = std::conditional_t<own_keys, Keys, Queries>;
    using Other = std::conditional_t<own_keys, Queries, Keys>;
    static constexpr unsigned kSharedBytes =
        (2 * kOwn + kStages * 2 * kOther) * kStride * 2 + Own::bytes(kOwn) + kStages * Other::bytes(kOther);
};

// Own and other rows come in pairs: keys and values, or queries and d_out. own[0] other[0] are scores, own[1] other[1]
// gradients of probabilities; d[0] = ds other[0] and, only for keys, d[1] = p other[1].
// Keys sum over all members of their group.
template <class T, class R, int D, bool own_keys>
__global__ void __launch_bounds__(kMostThreads, 2) attention_backward_kernel(Backward<T, R> a) {
    using Z = Sizes<D, own_keys>;
    constexpr int M = Z::kRows, N = Z::kOther, kColumns = D / Z::kParts, kOwn = Z::kOwn * Z::kStride, kOther = N * Z::kStride;
    SHARED_MEMORY(T, shared);
    const AttentionDropout& drop = a.mask.drop;
    const int d = static_cast<int>(a.shape.head_dim), warp = static_cast<int>(thread()) / kLanes,
              of_warp = warp % Z::kRowWarps * 16 * M, part = warp / Z::kRowWarps * kColumns;
    const BackwardBlock<own_keys> own(a, Z::kOwn);
    T* const own_begin = shared;
    T* const tiles_begin = own_begin + 2 * kOwn;
    int* const tokens_begin = reinterpret_cast<int*>(tiles_begin + kStages * 2 * kOther);
    const auto tokens_of = [&](int stage) { return typename Z::Other{tokens_begin + stage * Z::Other::bytes(N) / 4, N}; };
    const typename Z::Own own_tokens{tokens_begin + kStages * Z::Other::bytes(N) / 4, Z::kOwn};
    const Tiles<own_keys> tiles = own.tiles(a, Z::kOwn, N);
    const Range range = seen_range(tiles);

    float d0[M][kColumns / 8][4] = {}, d1[own_keys ? M : 1][kColumns / 8][4] = {};
    copy_rows<D>(own_keys ? a.k : a.q, d, own.first, own.rows.count, Z::kOwn, own_begin, own.rows);
    copy_rows<D>(own_keys ? a.v : a.d_out, d, own.first, own.rows.count, Z::kOwn, own_begin + kOwn, own.second_rows);
    copy_tokens(a, own.batch, own.head, own.member, own.first, own_tokens);
    for (int member = own.member; member <= own.last_member; ++member) {
        const Rows rows = own.other_rows(a.shape, member), second = own.second_other_rows(a.shape, member);
        const auto copy = [&](int tile, int stage) {
            T* const to = tiles_begin + stage * 2 * kOther;
            copy_rows<D>(own_keys ? a.q : a.k, d, tile * N, rows.count, N, to, rows);
            copy_rows<D>(own_keys ? a.d_out : a.v, d, tile * N, rows.count, N, to + kOther, second);
            copy_tokens(a, own.batch, own.head, member, tile * N, tokens_of(stage));
        };
        for_tiles<kStages>(tiles, range, copy, [&](int stage, int tile, bool is_open) {
            if (own.first + of_warp >= own.rows.count) return;  // the whole warp
            const T* const other = tiles_begin + stage * 2 * kOther;
            const typename Z::Other tokens = tokens_of(stage);
            const auto pair = [&](int m, int n, int e, auto f) {
                return with_pair(own_tokens, of_warp + m * 16 + row_of(e), tokens, n * 8 + column_of(e), f);
            };
            float p[M][N / 8][4] = {}, ds[M][N / 8][4] = {};
            add_scores<D, T, M, N>(p, own_begin + of_warp * Z::kStride, other);
            add_scores<D, T, M, N>(ds, own_begin + kOwn + of_warp * Z::kStride, other + kOther);
            for_elements<M, N>([&](int m, int n, int e) { p[m][n][e] *= a.shape.scale * kLog2E; });
            if (!is_open) {
                for_elements<M, N>([&](int m, int n, int e) {
                    const bool exists = tile * N + n * 8 + column_of(e) < rows.count;
                    const bool seen = exists && pair(m, n, e, [&](const Queries& queries, int query, const Keys& keys, int key) {
                                          return sees(queries, query, keys, key, a.window);
                                      });
                    p[m][n][e] = seen ? p[m][n][e] : -kInfinity;
                });
            }
            for_elements<M, N>([&](int m, int n, int e) {
                const float lse =
                    pair(m, n, e, [](const Queries& queries, int query, const Keys&, int) { return queries.lse(query); });
                p[m][n][e] = power_of_two(p[m][n][e] - (lse == -kInfinity ? 0.0f : lse * kLog2E));
            });
            const auto delta_of = [&](int m, int n, int e) {
                return pair(m, n, e, [](const Queries& queries, int query, const Keys&, int) { return queries.delta(query); });
            };
            if (drop.noise) {
                for_elements<M, N>([&](int m, int n, int e) {
                    const bool kept = pair(m, n, e, [&](const Queries& queries, int query, const Keys& keys, int key) {
                        return keeps(drop, keys.pos(key), queries.dropout(query));
                    });
                    ds[m][n][e] = p[m][n][e] * ((kept ? ds[m][n][e] * drop.scale : 0.0f) - delta_of(m, n, e));
                    p[m][n][e] = kept ? p[m][n][e] : 0.0f;
                });
            } else {
                for_elements<M, N>([&](int m, int n, int e) { ds[m][n][e] = p[m][n][e] * (ds[m][n][e] - delta_of(m, n, e)); });
            }
            if constexpr (own_keys) add_products<D, T, M, N, kColumns>(d1, p, other + kOther + part);
            add_products<D, T, M, N, kColumns>(d0, ds, other + part);
        });
    }
    if constexpr (std::is_same_v<T, R>) {
        put_sums<D>(d0, a.shape.scale, own_begin + of_warp * Z::kStride + part);
        if constexpr (own_keys) put_sums<D>(d1, drop.scale, own_begin + kOwn + of_warp * Z::kStride + part);
        block_barrier();
        write_rows<D>(own_begin, d, own.first, own.rows.count, Z::kOwn, own_keys ? a.d_k : a.d_q, own.rows);
        if (own_keys) write_rows<D>(own_begin + kOwn, d, own.first, own.rows.count, Z::kOwn, a.d_v, own.rows);
    } else {
        const auto write = [&](const auto& sums, float factor, R* to, bool adds) {
            const auto place_of = [&](int row) { return own.rows(row) + part; };
            write_sums(sums, factor, d - part, own.first + of_warp, own.rows.count, to, place_of, adds);
        };
        write(d0, a.shape.scale, own_keys ? a.d_k : a.d_q, !own_keys && a.adds);
        if constexpr (own_keys) write(d1, drop.scale, a.d_v, false);
    }
}

template <int W, class T>
__global__ void __launch_bounds__(kBlock, 4) row_dots_kernel(int64_t rows, int n, const T* d_out, const T* out, float* delta) {
    const int64_t row = first_row<kLanes>();
    if (row >= rows) return;
    float sum = 0;
    for_pieces<kLanes, W>(n, [&](int, int i) {
        const Floats<W> x = load<W>(d_out + row * n + i), y = load<W>(out + row * n + i);
        UNROLL
        for (int j = 0; j < W; ++j) sum += x[j] * y[j];
    });
    sum = sum_over<kLanes>(sum, static_cast<float*>(nullptr));
    if (thread() % kLanes == 0) delta[row] = sum;
}

template <class T, class R, int D, bool own_keys>
void start_side(Stream stream, const Backward<T, R>& a) {
    using Z = Sizes<D, own_keys>;
    static_assert(Z::kThreads <= kMostThreads && Z::kSharedBytes <= kSharedBytesAnywhere);
    const int64_t blocks = BackwardBlock<own_keys>::blocks(a.shape, Z::kOwn);
    find_other_bounds<own_keys>(stream, a, Z::kOther);
    if (blocks > 0)
        launch(attention_backward_kernel<T, R, D, own_keys>, {static_cast<unsigned>(blocks), Z::kThreads, Z::kSharedBytes},
               stream, a);
}
template <class T, class R, int D>
void start_products(Stream stream, const Backward<T, R>& a) {
    start_side<T, R, D, false>(stream, a);
    start_side<T, R, D, true>(stream, a);
}

template <class T, class R>
void start(Stream stream, const AttentionShape& shape, const AttentionMask& mask, const T* q, const T* k, const T* v,
           const T* out, const float* lse, const T* d_out, bool adds, R* d_q, R* d_k, R* d_v, void* workspace) {
    const int64_t rows = shape.batch * shape.seq * shape.kv_heads * shape.group, d = shape.head_dim;
    char* const query_bounds = static_cast<char*>(workspace);
    char* const key_bounds = query_bounds + bytes_of_bounds(shape.batch, shape.seq);
    float* const delta = reinterpret_cast<float*>(key_bounds + bytes_of_bounds(shape.batch, shape.kv_seq));
    const Backward<T, R> a{shape,
                           mask,
                           window_of(shape),
                           reinterpret_cast<Bounds*>(query_bounds),
                           reinterpret_cast<Bounds*>(key_bounds),
                           q,
                           k,
                           v,
                           d_out,
                           lse,
                           delta,
                           d_q,
                           d_k,
                           d_v,
                           adds};
    const bool wide = is_wide(d, q, k, v, out, d_out, d_q, d_k, d_v);
    if (rows > 0)
        launch(wide ? row_dots_kernel<kWide, T> : row_dots_kernel<1, T>, grid_of_rows(rows, kLanes), stream, rows, d, d_out, out,
               delta);
    if constexpr (sizeof(T) == 4) start_plain(stream, a, wide);
    else if (!wide) start_plain(stream, a, wide);
    else if (d <= 64) start_products<T, R, 64>(stream, a);
    else if (d <= 96) start_products<T, R, 96>(stream, a);
    else if (d <= 128) start_products<T, R, 128>(stream, a);
    else start_products<T, R, 256>(stream, a);
}

}  // namespace

template <class T>
void attention_backward(Stream stream, const AttentionShape& shape, const AttentionMask& mask, const T* q, const T* k, const T* v,
                        const T* out, const float* lse, const T* d_out, T* d_q, T* d_k, T* d_v, void* workspace) {
    start(stream, shape, mask, q, k, v, out, lse, d_out, false, d_q, d_k, d_v, workspace);
}
template <class T>
void attention_block_backward(Stream stream, const AttentionShape& shape, const AttentionMask& mask, const T* q, const T* k,
                              const T* v, const T* out, const float* lse, const T* d_out, bool carries, float* d_q, float* d_k,
                              float* d_v, void* workspace) {
    start(stream, shape, mask, q, k, v, out, lse, d_out, carries, d_q, d_k, d_v, workspace);
}

#define COPY(T)                                                                                                                  \
    template void attention_backward<T>(Stream, const AttentionShape&, const AttentionMask&, const T*, const T*, const T*,       \
                                        const T*, const float*, const T*, T*, T*, T*, void*);                                    \
    template void attention_block_backward<T>(Stream, const AttentionShape&, const AttentionMask&, const T*, const T*, const T*, \
                                              const T*, const float*, const T*, bool, float*, float*, float*, void*);
LOCKSTEP_OF_ONE_TYPE(COPY)
#undef COPY

}  // namespace lockstep::kernels::gpu
