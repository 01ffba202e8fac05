// The inner products of matmul and attention: C[m, n] (+)= sum over p of A[p, i] * B[p, j], where both operands hold one
// step of the sum as a contiguous row. A tile of kTileRows x kTileColumns sums stays in registers.
// Include only from sources compiled once per instruction set.
#pragma once

#include <array>
#include <utility>

#include "kernels/cpu/simd.h"

namespace lockstep::kernels::cpu::LOCKSTEP_ISA {

enum class Write { replace, add };

// What sums are multiplied by: of each row and column of a tile.
struct SumScales {
    const float *rows, *columns;
};

template <int Rows>
LOCKSTEP_INLINE void scale_sums(Vec (&sums)[Rows][2], SumScales by) {
    const Vec left = load(by.columns), right = load(by.columns + kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < Rows; ++i) {
        sums[i][0] = sums[i][0] * by.rows[i] * left;
        sums[i][1] = sums[i][1] * by.rows[i] * right;
    }
}

// c = sums, or partial + sums; partial may be c. partial, c: [Rows, kTileColumns]. Sums are scaled first where there are scales.
// Their products are rounded before the sum, for every number of rows: compilers make no fma across the branch.
template <int Rows, class Out, class... Scales>
LOCKSTEP_INLINE void finish_tile(Vec (&sums)[Rows][2], const float* partial, int64_t partial_stride, Out* c, int64_t c_stride,
                                 Scales... scales) {
    (scale_sums<Rows>(sums, scales), ...);
    if (partial) {
#pragma GCC unroll 16
        for (int i = 0; i < Rows; ++i) {
            sums[i][0] += load(partial + i * partial_stride);
            sums[i][1] += load(partial + i * partial_stride + kLanes);
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < Rows; ++i) {
        store(c + i * c_stride, sums[i][0]);
        store(c + i * c_stride + kLanes, sums[i][1]);
    }
}

// Sums over k, finished. a: [k, >= Rows] rows a_stride apart; b: [k, kTileColumns].
template <int Rows, class Out, class... Scales>
__attribute__((noinline)) void tile(int64_t k, const float* a, int64_t a_stride, const float* b, int64_t b_stride,
                                    const float* partial, int64_t partial_stride, Out* c, int64_t c_stride, Scales... scales) {
    Vec sums[Rows][2];
#pragma GCC unroll 16
    for (int i = 0; i < Rows; ++i) {
        sums[i][0] = sums[i][1] = Vec{};
        __builtin_prefetch(c + i * c_stride, 1);
        __builtin_prefetch(c + i * c_stride + kTileColumns - 1, 1);
    }
#pragma GCC unroll 2
    for (int64_t p = 0; p < k; ++p) {
        const Vec b0 = load(b), b1 = load(b + kLanes);
#pragma GCC unroll 16
        for (int i = 0; i < Rows; ++i) {
            const Vec x = splat(a[i]);
            sums[i][0] += x * b0;
            sums[i][1] += x * b1;
        }
        a += a_stride;
        b += b_stride;
    }
    finish_tile<Rows>(sums, partial, partial_stride, c, c_stride, scales...);
}

template <class Out, class... Scales>
using Tile = void(int64_t, const float*, int64_t, const float*, int64_t, const float*, int64_t, Out*, int64_t, Scales...);

template <class Out, class... Scales, size_t... I>
constexpr std::array<Tile<Out, Scales...>*, sizeof...(I)> tiles(std::index_sequence<I...>) {
    return {&tile<static_cast<int>(I) + 1, Out, Scales...>...};
}
template <class Out, class... Scales>
inline constexpr std::array<Tile<Out, Scales...>*, kTileRows> kTiles =
    tiles<Out, Scales...>(std::make_index_sequence<kTileRows>());  // kTiles<Out>[rows - 1]

// Two neighbours along the sum, as the bfloat16 dot product of a processor takes them.
struct Bf16Pair {
    uint16_t low, high;
};
static_assert(sizeof(Bf16Pair) == 4);

// sum + x.low y.low + x.high y.high in each lane. vdpbf16ps rounds between the two and flushes denormal numbers.
LOCKSTEP_INLINE Vec dot(Vec sum, BitVec x, BitVec y) {
#if defined(__AVX512BF16__)
    return reinterpret_cast<Vec>(
        _mm512_dpbf16_ps(reinterpret_cast<__m512>(sum), reinterpret_cast<__m512bh>(x), reinterpret_cast<__m512bh>(y)));
#else
    const auto low = [](BitVec v) { return reinterpret_cast<Vec>(v << 16); };
    const auto high = [](BitVec v) { return reinterpret_cast<Vec>(v & 0xffff0000u); };
    return sum + low(x) * low(y) + high(x) * high(y);
#endif
}
// Values that are exact in bfloat16.
LOCKSTEP_INLINE Vec pair_of(Vec low, Vec high) {
    return reinterpret_cast<Vec>(reinterpret_cast<BitVec>(low) >> 16 | reinterpret_cast<BitVec>(high));
}
LOCKSTEP_INLINE BitVec load_pairs(const Bf16Pair* p) {
    BitVec v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
}
LOCKSTEP_INLINE BitVec splat_pair(const Bf16Pair* p) {
    uint32_t bits;
    __builtin_memcpy(&bits, p, sizeof bits);
    return BitVec{} + bits;
}

// As `tile`, of packed pairs: a: [steps, kTileRows]; b: [steps, kTileColumns].
template <int Rows, class Out, class... Scales>
__attribute__((noinline)) void pair_tile(int64_t steps, const Bf16Pair* a, const Bf16Pair* b, const float* partial,
                                         int64_t partial_stride, Out* c, int64_t c_stride, Scales... scales) {
    Vec sums[Rows][2];
#pragma GCC unroll 16
    for (int i = 0; i < Rows; ++i) sums[i][0] = sums[i][1] = Vec{};
#pragma GCC unroll 2
    for (int64_t p = 0; p < steps; ++p) {
        const BitVec b0 = load_pairs(b), b1 = load_pairs(b + kLanes);
#pragma GCC unroll 16
        for (int i = 0; i < Rows; ++i) {
            const BitVec x = splat_pair(a + i);
            sums[i][0] = dot(sums[i][0], x, b0);
            sums[i][1] = dot(sums[i][1], x, b1);
        }
        a += kTileRows;
        b += kTileColumns;
    }
    finish_tile<Rows>(sums, partial, partial_stride, c, c_stride, scales...);
}

template <class Out, class... Scales>
using PairTile = void(int64_t, const Bf16Pair*, const Bf16Pair*, const float*, int64_t, Out*, int64_t, Scales...);

template <class Out, class... Scales, size_t... I>
constexpr std::array<PairTile<Out, Scales...>*, sizeof...(I)> pair_tiles(std::index_sequence<I...>) {
    return {&pair_tile<static_cast<int>(I) + 1, Out, Scales...>...};
}
template <class Out, class... Scales>
inline constexpr std::array<PairTile<Out, Scales...>*, kTileRows> kPairTiles =
    pair_tiles<Out, Scales...>(std::make_index_sequence<kTileRows>());

// c: [m, n], n a multiple of kTileColumns; a: [k, m]; b: [k, n].
inline void block_product(int64_t m, int64_t n, int64_t k, const float* a, int64_t a_stride, const float* b, int64_t b_stride,
                          float* c, int64_t c_stride, Write write) {
    const int64_t tiles_down = (m + kTileRows - 1) / kTileRows;  // of nearly equal height: 64 rows = 9 x 6 + 2 x 5
    for (int64_t j = 0; j < n; j += kTileColumns) {
        int64_t i = 0;
        for (int64_t t = tiles_down; t > 0; --t) {
            const int64_t rows = (m - i + t - 1) / t;
            float* to = c + i * c_stride + j;
            kTiles<float>[rows - 1](k, a + i, a_stride, b + j, b_stride, write == Write::add ? to : nullptr, c_stride, to,
                                    c_stride);
            i += rows;
        }
    }
}

// to[p * to_stride + i] = from[i * from_stride + p] for i < rows <= kLanes, p < columns. May write up to kLanes - rows
// elements past the last one, which the next call on the same destination overwrites.
template <class From, class To>
void transpose_strip(int64_t rows, int64_t columns, const From* from, int64_t from_stride, To* to, int64_t to_stride) {
    const int64_t whole = columns / kLanes * kLanes;
    for (int64_t p = 0; p < whole; p += kLanes) {
        Vec block[kLanes];
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) block[i] = i < rows ? load(from + i * from_stride + p) : Vec{};
        transpose(block);
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) store(to + (p + i) * to_stride, block[i]);
    }
    for (int64_t p = whole; p < columns; ++p)
        for (int64_t i = 0; i < rows; ++i) to[p * to_stride + i] = To(float(from[i * from_stride + p]));
}

}  // namespace lockstep::kernels::cpu::LOCKSTEP_ISA
