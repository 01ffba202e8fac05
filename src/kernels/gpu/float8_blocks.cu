#include "kernels/gpu/float8_walks.h"

namespace lockstep::kernels::gpu {
namespace {

// What values are multiplied by whose largest size has these bits; the scale is stored in s.
template <class Q, class S>
__device__ __forceinline__ float multiplier(int most, BlockRounding rounding, S& s) {
    const auto amax = static_cast<double>(std::bit_cast<float>(most));
    if constexpr (std::is_same_v<S, E8M0>) {
        s = block_scale(amax, Q::kLargest, rounding);
        return s.reciprocal();
    } else {
        const float by = scale_of(amax, Q::kLargest, false);
        s = 1.0f / by;
        return by;
    }
}

// Blocks of neighbours: `lanes`, a power of two, have W elements each.
template <int W, class T, class Q, class S>
__global__ void __launch_bounds__(kEachThreads)
    neighbours_kernel(int64_t n, int lanes, BlockRounding rounding, const T* x, Q* q, S* s) {
    const int64_t pieces = n / W, all = static_cast<int64_t>(blocks()) * kEachThreads;
    for (int64_t first = static_cast<int64_t>(block()) * kEachThreads; first < pieces; first += all) {
        const int64_t piece = first + thread();
        const bool is_own = piece < pieces;
        Floats<W> values = {};
        if (is_own) values = load<W>(x + piece * W);
        int most = largest_size(values);
        for (int mask = lanes / 2; mask > 0; mask /= 2) most = larger(most, shuffle_xor(most, mask));
        if (!is_own) continue;
        S scale;
        const float by = multiplier<Q>(most, rounding, scale);
        if (piece % lanes == 0) s[piece / lanes] = scale;
        UNROLL
        for (int j = 0; j < W; ++j) values[j] *= by;
        store_codes(q + piece * W, values);
    }
}
// Of any size: a thread has a block.
template <class T, class Q, class S>
struct OwnBlock {
    int64_t block;
    BlockRounding rounding;
    const T* x;
    Q* q;
    S* s;
    template <int W>
    __device__ void at(int64_t i) const {
        int most = 0;
        for (int64_t k = i * block; k < (i + 1) * block; ++k) most = larger(most, size_of(widen(x[k])));
        const float by = multiplier<Q>(most, rounding, s[i]);
        for (int64_t k = i * block; k < (i + 1) * block; ++k) store_codes(q + k, Floats<1>{widen(x[k]) * by});
    }
};

// Blocks of a column.
template <class T, class Q, class S>
struct BlocksOfColumns {
    BlockRounding rounding;
    const T* x;
    Q* q;
    S* s;
    int* parts;
    template <int W>
    __device__ void tile(const Tile& tile) const {
        int most[W];
        largest_of_columns<W>(tile, x, parts, most);
        Floats<W> by;
        Stored<W, S> scales;
        UNROLL
        for (int j = 0; j < W; ++j) by[j] = multiplier<Q>(most[j], rounding, scales.v[j]);
        if (tile.is_own && thread() < kLanes) {
            if constexpr (std::is_same_v<S, float>) store_whole(s + tile.group, widened(scales));
            else store_stored(s + tile.group, scales);
        }
        for_rows(tile, [&](int64_t i) {
            Floats<W> values = load<W>(x + i);
            UNROLL
            for (int j = 0; j < W; ++j) values[j] *= by[j];
            store_codes(q + i, values);
        });
    }
};
template <int W, class T, class Q, class S>
__global__ void __launch_bounds__(kEachThreads)
    blocks_of_columns_kernel(int64_t n, Grouping groups, BlockRounding rounding, const T* x, Q* q, S* s) {
    __shared__ int parts[kPartsOfTile<W>];
    BlocksOfColumns<T, Q, S> f{rounding, x, q, s, parts};
    for_tiles<W>(n, groups, groups.run, f);
}

}  // namespace

template <class T, class Q, class S>
void to_blocks(Stream stream, const Blocks& b, BlockRounding rounding, const T* x, Q* q, S* s) {
    const int64_t n = b.count * b.size * b.columns;
    if (n == 0) return;
    if (b.columns > 1) {
        Grouping g;
        g.columns = b.columns, g.run = b.size, g.count = b.count * b.columns, g.dims = 1;
        g.of[0] = {b.count, 1, b.columns};
        const bool wide = b.columns % kCodes == 0 && is_wide(0, x, q, s);
        if (wide)
            launch(blocks_of_columns_kernel<kCodes, T, Q, S>, grid_of_tiles(n, g, b.size, kCodes), stream, n, g, rounding, x, q,
                   s);
        else launch(blocks_of_columns_kernel<1, T, Q, S>, grid_of_tiles(n, g, b.size, 1), stream, n, g, rounding, x, q, s);
        return;
    }
    const int64_t lanes = b.size / kCodes;
    const bool wide = b.size % kCodes == 0 && lanes <= kLanes && (lanes & (lanes - 1)) == 0 && is_wide(0, x, q);
    if (!wide) return for_each(stream, b.count, OwnBlock<T, Q, S>{b.size, rounding, x, q, s});
    launch(neighbours_kernel<kCodes, T, Q, S>, grid_of_pieces(n / kCodes), stream, n, static_cast<int>(lanes), rounding, x, q, s);
}

#define COPY_OF_THREE(T, Q, S) template void to_blocks<T, Q, S>(Stream, const Blocks&, BlockRounding, const T*, Q*, S*);
#define COPY_OF_TWO(T, Q) COPY_OF_THREE(T, Q, float) COPY_OF_THREE(T, Q, E8M0)
#define COPY(T) COPY_OF_TWO(T, F8E4M3) COPY_OF_TWO(T, F8E5M2)
LOCKSTEP_OF_ONE_TYPE(COPY)
#undef COPY
#undef COPY_OF_TWO
#undef COPY_OF_THREE

}  // namespace lockstep::kernels::gpu
