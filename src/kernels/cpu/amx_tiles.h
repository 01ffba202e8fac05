// Products of bfloat16 by AMX: C is made in blocks of 2 x 2 tiles of 16 x 16 floats; a step of the sum takes two tiles of 16
// rows x 32 bfloat16 of A and two of 16 pairs x 16 columns of B. Four loads for four products: what eight tiles allow at best.
// Include only from sources compiled for AMX.
#pragma once

#include <immintrin.h>

#include "base/round.h"
#include "kernels/cpu/matmul_loops.h"
#include "kernels/cpu/tile.h"
#include "kernels/cpu/tile_configuration.h"

namespace lockstep::kernels::cpu::LOCKSTEP_ISA {

inline constexpr int64_t kSide = 16;              // of a tile: rows, and elements of four bytes in a row
inline constexpr int64_t kPairs = kSide * kSide;  // in a tile
inline constexpr int64_t kStep = 2 * kSide;       // of K in a tile

// GCC's tile instructions do not tell the compiler that they read and write memory.
LOCKSTEP_INLINE void memory_is_used() { asm volatile("" ::: "memory"); }

// A thread's tiles, while it makes products.
struct TileSession {
    TileSession() { _tile_loadconfig(&kWholeTiles); }  // edges are filled up with zeros
    ~TileSession() { _tile_release(); }
    TileSession(const TileSession&) = delete;
    TileSession& operator=(const TileSession&) = delete;
};

struct TileMath {
    using Element = Bf16Pair;
    static constexpr MatmulKernel kKernel = MatmulKernel::amx;
    static constexpr int kRows = 32, kColumns = 32;
    static int64_t steps(int64_t k) { return round_up(k, kStep) / 2; }

    // Panels of two tiles next to each other, tile after tile along K. Reads run along memory.
    template <Side side>
    static void pack_block(const Operand<Bf16>& x, int64_t outer, int64_t count, int64_t p0, int64_t k, Bf16Pair* to) {
        pack_block<side>(x, outer, count, p0, k, to, steps(k));
    }
    // With room for `steps_of_panel` steps in a panel.
    template <Side side>
    static void pack_block(const Operand<Bf16>& x, int64_t outer, int64_t count, int64_t p0, int64_t k, Bf16Pair* to,
                           int64_t steps_of_panel) {
        const int64_t tiles = round_up(count, 2 * kSide) / kSide;
        const auto pack = [&](int64_t tile, int64_t p) {
            const int64_t rest = std::clamp<int64_t>(count - tile * kSide, 0, kSide);
            pack_tile<side>(x, outer + tile * kSide, rest, p0 + p, std::min(kStep, k - p),
                            to + tile / 2 * 2 * kSide * steps_of_panel + p / kStep * 2 * kPairs + tile % 2 * kPairs);
        };
        if (x.along_outer) {
            for (int64_t p = 0; p < k; p += kStep)
                for (int64_t tile = 0; tile < tiles; ++tile) pack(tile, p);
        } else {
            for (int64_t tile = 0; tile < tiles; ++tile)
                for (int64_t p = 0; p < k; p += kStep) pack(tile, p);
        }
    }

    // The sums of a block, in tiles 0 to 3: zero where nothing comes `before`.
    LOCKSTEP_INLINE static void load_sums(const float* before, int64_t stride) {
        memory_is_used();
        if (before) {
            const float* below = before + kSide * stride;
            _tile_loadd(0, before, stride * 4);
            _tile_loadd(1, before + kSide, stride * 4);
            _tile_loadd(2, below, stride * 4);
            _tile_loadd(3, below + kSide, stride * 4);
        } else {
            _tile_zero(0);
            _tile_zero(1);
            _tile_zero(2);
            _tile_zero(3);
        }
    }
    LOCKSTEP_INLINE static void multiply(int64_t steps, const Bf16Pair* a, const Bf16Pair* b, const auto& at_each_step) {
        for (int64_t s = 0; s < steps; s += kSide, a += 2 * kPairs, b += 2 * kPairs) {
            at_each_step();
            _tile_loadd(4, a, 64);
            _tile_loadd(6, b, 64);
            _tile_dpbf16ps(0, 4, 6);
            _tile_loadd(7, b + kPairs, 64);
            _tile_dpbf16ps(1, 4, 7);
            _tile_loadd(5, a + kPairs, 64);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    LOCKSTEP_INLINE static void store_sums(float* to, int64_t stride) {
        float* below = to + kSide * stride;
        _tile_stored(0, to, stride * 4);
        _tile_stored(1, to + kSide, stride * 4);
        _tile_stored(2, below, stride * 4);
        _tile_stored(3, below + kSide, stride * 4);
        memory_is_used();
    }

    template <class Out>
    __attribute__((noinline)) static void tile(int64_t rows, int64_t steps, const Bf16Pair* a, const Bf16Pair* b,
                                               const float* partial, int64_t partial_stride, Out* c, int64_t c_stride) {
        alignas(64) float sums[kRows * kColumns];
        const bool whole = rows == kRows;
        if (partial && !whole) {
            for (int64_t i = 0; i < rows; ++i) __builtin_memcpy(sums + i * kColumns, partial + i * partial_stride, kColumns * 4);
            partial = sums, partial_stride = kColumns;
        }
        load_sums(partial, partial_stride);
        // While this tile is multiplied the place of the one below it comes from memory.
        const int64_t rows_a_step = (kRows * kSide + steps - 1) / steps;
        const Out* next = c + kRows * c_stride;
        multiply(steps, a, b, [&] {
            for (int64_t i = 0; i < rows_a_step; ++i, next += c_stride) {
                __builtin_prefetch(next, 1);
                if constexpr (std::is_same_v<Out, float>) __builtin_prefetch(next + kSide, 1);
            }
        });
        if constexpr (std::is_same_v<Out, float>) {
            if (whole) return store_sums(c, c_stride);
        }
        store_sums(sums, kColumns);
        for (int64_t i = 0; i < rows; ++i)
            store_row(c + i * c_stride, load(sums + i * kColumns), load(sums + i * kColumns + kSide));
    }

private:
    LOCKSTEP_INLINE static void store_row(float* to, Vec left, Vec right) { store(to, left), store(to + kSide, right); }
    // One instruction where `narrow` takes many. It flushes denormal numbers, as the products have.
    LOCKSTEP_INLINE static void store_row(Bf16* to, Vec left, Vec right) {
        const __m512bh both = _mm512_cvtne2ps_pbh(reinterpret_cast<__m512>(right), reinterpret_cast<__m512>(left));
        __builtin_memcpy(to, &both, sizeof both);
    }

    // A tile of A is [outer][pair of K], one of B [pair of K][outer].
    template <Side side>
    LOCKSTEP_INLINE static void pack_tile(const Operand<Bf16>& x, int64_t outer, int64_t count, int64_t p, int64_t k,
                                          Bf16Pair* to) {
        if (count < kSide || k < kStep) return pack_edge<side>(x, outer, count, p, k, to);
        Vec block[kLanes];
        static_assert(kLanes == kSide);
        if (x.along_outer) {  // [pair][outer], from two rows each
            const Bf16* from = x.data + p * x.stride + outer;
#pragma GCC unroll 16
            for (int i = 0; i < kLanes; ++i) {
                const BitVec low = reinterpret_cast<BitVec>(load(from + 2 * i * x.stride));
                const BitVec high = reinterpret_cast<BitVec>(load(from + (2 * i + 1) * x.stride));
                block[i] = reinterpret_cast<Vec>(low >> 16 | high);
            }
        } else {  // [outer][pair], as they are
            const Bf16* from = x.data + outer * x.stride + p;
#pragma GCC unroll 16
            for (int i = 0; i < kLanes; ++i) __builtin_memcpy(&block[i], from + i * x.stride, sizeof(Vec));
        }
        if (x.along_outer == (side == Side::left)) transpose(block);
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) __builtin_memcpy(to + i * kSide, &block[i], sizeof(Vec));
    }

    template <Side side>
    __attribute__((noinline)) static void pack_edge(const Operand<Bf16>& x, int64_t outer, int64_t count, int64_t p, int64_t k,
                                                    Bf16Pair* to) {
        const auto at = [&](int64_t i, int64_t q) {
            if (i >= count || q >= k) return uint16_t{0};
            return x.data[x.along_outer ? (p + q) * x.stride + outer + i : (outer + i) * x.stride + p + q].bits;
        };
        for (int64_t i = 0; i < kSide; ++i)
            for (int64_t q = 0; q < kSide; ++q)
                to[side == Side::left ? i * kSide + q : q * kSide + i] = {at(i, 2 * q), at(i, 2 * q + 1)};
    }
};

}  // namespace lockstep::kernels::cpu::LOCKSTEP_ISA
