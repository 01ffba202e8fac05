// How threads share the elements of a float8 tensor, so that each knows the scale of what it has: three ways, by how the groups lie.
// A functor f has begin(group) and at<W>(i) for elements of one group, and tile<W>(..) where neighbours have neighbouring scales.
#pragma once

#include "kernels/gpu/each.h"
#include "kernels/gpu/float8.h"

namespace lockstep::kernels::gpu {

inline constexpr int kCodes = 16;             // at once: codes of 16 bytes
inline constexpr int64_t kOfBlock = 1 << 14;  // elements of a run that a block takes at once
inline constexpr int64_t kShortRun = 2048;    // elements: of fewer, most threads of a block would have none
inline constexpr int kWarps = kEachThreads / kLanes;
inline constexpr int64_t kRowsOfTile = 64;

// Runs: a block has parts of one. Pieces: each thread looks for the group of its elements. Columns: those of Grouping.
enum class Walk { Runs, Pieces, Columns };

// N: the type of divisions. Those of 32 bits are faster, and need fewer registers.
template <class N>
__device__ __forceinline__ int64_t group_of(const Grouping& g, N run) {
    int64_t at = 0;
    for (int d = 0; d < g.dims; ++d) {
        const N size = static_cast<N>(g.of[d].size), quotient = run / size, index = run - quotient * size;
        at += index / static_cast<N>(g.of[d].each) * g.of[d].stride;
        run = quotient;
    }
    return at;
}

// f.begin(group), then f.at<W>(i) or f.at<1>(i) for this thread's elements of it. All threads of a block have the same groups.
template <int W, class N = int64_t, class F>
__device__ __forceinline__ void for_runs(int64_t n, const Grouping& g, F& f) {
    const int64_t parts = (g.run + kOfBlock - 1) / kOfBlock, all = int64_t{static_cast<N>(n) / static_cast<N>(g.run)} * parts;
    int64_t group = -1;
    for (int64_t part = block(); part < all; part += blocks()) {
        const int64_t run = static_cast<N>(part) / static_cast<N>(parts), first = (part - run * parts) * kOfBlock;
        const int64_t own = g.count == 1 ? 0 : group_of(g, static_cast<N>(run));
        if (own != group) f.begin(own);
        group = own;
        const int64_t begin = run * g.run + first, length = g.run - first < kOfBlock ? g.run - first : kOfBlock;
        UNROLL_BY(2)
        for (int64_t i = static_cast<int64_t>(thread()) * W; i + W <= length; i += kEachThreads * W) f.template at<W>(begin + i);
        NO_UNROLL
        for (int64_t i = length / W * W + thread(); i < length; i += kEachThreads) f.template at<1>(begin + i);
    }
}

// f.begin(group), then f.at<W>(i): runs are of whole pieces of W elements.
template <int W, class F>
__device__ __forceinline__ void for_pieces_of_runs(int64_t n, const Grouping& g, F& f) {
    const int64_t all = static_cast<int64_t>(blocks()) * kEachThreads * W;
    for (int64_t i = (static_cast<int64_t>(block()) * kEachThreads + thread()) * W; i < n; i += all) {
        f.begin(group_of(g, i / g.run));
        f.template at<W>(i);
    }
}

// Rows of a tile of columns. This thread has W columns, and every kWarps-th row from its warp on.
struct Tile {
    int64_t at;       // the element of the first row in this thread's first column
    int64_t group;    // of that column
    int64_t columns;  // from a row to the next
    int rows;
    bool is_own;  // does this thread have columns at all?
};
// f.tile<W>(tile): all threads of a block have tiles of the same rows, at most `most` of one run.
template <int W, class F>
__device__ __forceinline__ void for_tiles(int64_t n, const Grouping& g, int64_t most, F& f) {
    constexpr int64_t kColumns = int64_t{kLanes} * W;
    const int64_t across = (g.columns + kColumns - 1) / kColumns, parts = (g.run + most - 1) / most;
    const int64_t all = n / (g.columns * g.run) * parts * across;
    for (int64_t t = block(); t < all; t += blocks()) {
        const int64_t part = t / across, run = part / parts, first = (part - run * parts) * most;
        const int64_t column = (t - part * across) * kColumns + thread() % kLanes * W;
        const int64_t rows = g.run - first < most ? g.run - first : most;
        f.template tile<W>(Tile{(run * g.run + first) * g.columns + column, group_of(g, run) + column, g.columns,
                                static_cast<int>(rows), column < g.columns});
    }
}
// f(i) for each of this thread's rows, from i on.
template <class F>
__device__ __forceinline__ void for_rows(const Tile& tile, F f) {
    if (!tile.is_own) return;
    for (int r = static_cast<int>(thread()) / kLanes; r < tile.rows; r += kWarps) f(tile.at + r * tile.columns);
}

template <Walk walk, int W, class F>
__device__ __forceinline__ void walk_groups(int64_t n, const Grouping& g, F& f) {
    if constexpr (walk == Walk::Runs) for_runs<W>(n, g, f);
    else if constexpr (walk == Walk::Pieces) for_pieces_of_runs<W>(n, g, f);
    else for_tiles<W>(n, g, kRowsOfTile, f);
}

inline Grid grid_of_tiles(int64_t n, const Grouping& g, int64_t most, int width) {
    const int64_t columns = int64_t{kLanes} * width;
    const int64_t all = n / (g.columns * g.run) * ((g.run + most - 1) / most) * ((g.columns + columns - 1) / columns);
    return {static_cast<unsigned>(all < kEachBlocks ? all : kEachBlocks), kEachThreads};
}
inline Grid grid_of(Walk walk, int64_t n, const Grouping& g, int width) {
    if (walk == Walk::Columns) return grid_of_tiles(n, g, kRowsOfTile, width);
    if (walk == Walk::Pieces) return grid_of_pieces(n / width);
    const int64_t all = n / g.run * ((g.run + kOfBlock - 1) / kOfBlock);
    return {static_cast<unsigned>(all < kEachBlocks ? all : kEachBlocks), kEachThreads};
}
// scales: of the groups. They are read so where they lie beside each other.
template <class S, class... T>
bool may_be_wide(int64_t n, const Grouping& g, const S* scales, const T*... begins) {
    const bool fits = g.columns > 1 ? g.columns % kCodes == 0 && is_wide(0, scales) : g.run == n || g.run % kCodes == 0;
    return fits && is_wide(0, begins...);
}
// start.operator()<walk, W>(grid).
template <class Start>
void by_walk(int64_t n, const Grouping& g, bool wide, Start start) {
    const auto go = [&]<Walk walk>() {
        if (wide) start.template operator()<walk, kCodes>(grid_of(walk, n, g, kCodes));
        else if constexpr (walk != Walk::Pieces) start.template operator()<walk, 1>(grid_of(walk, n, g, 1));
    };
    if (n == 0) return;
    if (g.columns > 1) go.template operator()<Walk::Columns>();
    else if (wide && g.run < kShortRun && g.run < n) go.template operator()<Walk::Pieces>();
    else go.template operator()<Walk::Runs>();
}

// Bits of sizes are in the order of the sizes, as integers; those of NaN are above.
__device__ __forceinline__ int larger(int a, int b) { return a > b ? a : b; }
__device__ __forceinline__ int size_of(float x) { return static_cast<int>(std::bit_cast<uint32_t>(x) & 0x7fffffffu); }
template <int W>
__device__ __forceinline__ int largest_size(const Floats<W>& x) {
    int most = 0;
    UNROLL
    for (int j = 0; j < W; ++j) most = larger(most, size_of(x[j]));
    return most;
}

// The largest sizes in the columns of a tile, of all its rows. parts: shared, kPartsOfTile<W>.
template <int W>
inline constexpr int kPartsOfTile = kWarps* kLanes* W;
template <int W, class T>
__device__ __forceinline__ void largest_of_columns(const Tile& tile, const T* x, int* parts, int (&most)[W]) {
    constexpr int kColumns = kLanes * W;
    UNROLL
    for (int j = 0; j < W; ++j) most[j] = 0;
    for_rows(tile, [&](int64_t i) {
        const Floats<W> values = load<W>(x + i);
        UNROLL
        for (int j = 0; j < W; ++j) most[j] = larger(most[j], size_of(values[j]));
    });
    const int lane = static_cast<int>(thread() % kLanes), warp = static_cast<int>(thread() / kLanes);
    block_barrier();  // parts have been read
    UNROLL
    for (int j = 0; j < W; ++j) parts[warp * kColumns + j * kLanes + lane] = most[j];
    block_barrier();
    for (int c = static_cast<int>(thread()); c < kColumns; c += kEachThreads) {
        int all = parts[c];
        UNROLL
        for (int w = 1; w < kWarps; ++w) all = larger(all, parts[w * kColumns + c]);
        parts[c] = all;
    }
    block_barrier();
    UNROLL
    for (int j = 0; j < W; ++j) most[j] = parts[j * kLanes + lane];
}

// Two codes, the lower byte first.
template <class Q>
__device__ __forceinline__ uint16_t encode(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    // But for the sign of a NaN the bits are those of the constructor.
    uint16_t codes;
    if constexpr (Q::kHasInfinity) asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
    else asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
    return codes;
#else
    return static_cast<uint16_t>(Q(low).bits | Q(high).bits << 8);
#endif
}
template <class Q, int W>
__device__ __forceinline__ void store_codes(Q* q, const Floats<W>& x) {
    Stored<W, Q> codes;
    if constexpr (W == 1) {
        codes.v[0].bits = static_cast<uint8_t>(encode<Q>(x[0], 0.0f));
    } else {
        uint16_t pairs[W / 2];
        UNROLL
        for (int j = 0; j < W / 2; ++j) pairs[j] = encode<Q>(x[2 * j], x[2 * j + 1]);
        memcpy(codes.v, pairs, sizeof pairs);
    }
    store_stored(q, codes);
}

}  // namespace lockstep::kernels::gpu
