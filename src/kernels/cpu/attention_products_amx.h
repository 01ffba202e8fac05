// Attention's products (attention_products.h) by AMX, of tokens in bfloat16: operands lie in panels of tiles, and what is left
// is filled up with zeros. Probabilities and their gradients are rounded to bfloat16, a column at a time; denormal numbers
// count as zero.
#pragma once

#include "kernels/cpu/amx_tiles.h"
#include "kernels/cpu/attention_blocks.h"

namespace lockstep::kernels::cpu::LOCKSTEP_ISA {

class Products {
public:
    using Element = Bf16Pair;
    static constexpr AttentionKernel kKernel = AttentionKernel::amx;
    template <class T>
    static constexpr bool kTakes = std::is_same_v<T, Bf16>;
    static constexpr bool kScalesQueries = false;
    using Session = TileSession;

    template <Side side>
    static void pack(int64_t count, int64_t d, const Bf16* from, int64_t stride, Bf16Pair* to) {
        TileMath::pack_block<side>({from, stride, false}, 0, count, 0, d, to, TileMath::steps(d));
    }
    static void pack_over_tokens(int64_t count, int64_t d, const Bf16* from, int64_t stride, Bf16Pair* to) {
        TileMath::pack_block<Side::left>({from, stride, true}, 0, d, 0, count, to, kSteps);
    }
    static void scale_queries(int64_t, float, Bf16Pair*) {}

    static void scores(Range rows, int64_t column, int64_t d, const Bf16Pair* left, const Bf16Pair* right, float* to) {
        const int64_t steps = TileMath::steps(d);
        for (int64_t i = rows.begin / TileMath::kRows * TileMath::kRows; i < rows.end; i += TileMath::kRows) {
            TileMath::load_sums(nullptr, 0);
            TileMath::multiply(steps, left + i * steps, right + column * steps, [] {});
            TileMath::store_sums(to + i * kBlock + column, kBlock);
        }
    }

    static void add_product(Range tokens, int64_t column, int64_t d, const Bf16Pair* left, const float* x, float* to) {
        const auto row = [&](int64_t t, int64_t lane) {
            return tokens.begin <= t && t < tokens.end ? load(x + t * kBlock + column + lane) : Vec{};
        };
        add(tokens, d, left, to + column, [&](int64_t t, int64_t lane, BitVec(&tile)[kSide]) {
#pragma GCC unroll 16
            for (int64_t i = 0; i < kSide; ++i) tile[i] = interleaved(row(t + 2 * i, lane), row(t + 2 * i + 1, lane));
        });
    }

    static void add_transposed(Range tokens, int64_t column, int64_t d, const Bf16Pair* left, const float* x, float* to) {
        const auto lanes = [&](int64_t row, int64_t t) {
            const Vec v = load(x + row * kBlock + t);
            if (tokens.begin <= t && t + kSide <= tokens.end) return v;
            Vec kept{};
            for (int64_t i = std::max<int64_t>(0, tokens.begin - t); i < std::min(kSide, tokens.end - t); ++i) kept[i] = v[i];
            return kept;
        };
        add(tokens, d, left, to + column, [&](int64_t t, int64_t lane, BitVec(&tile)[kSide]) {
            Vec block[kSide];
#pragma GCC unroll 16
            for (int64_t i = 0; i < kSide; ++i) {
                const int64_t row = column + lane + i;
                block[i] = reinterpret_cast<Vec>(rounded(lanes(row, t), lanes(row, t + kSide)));
            }
            transpose(block);
#pragma GCC unroll 16
            for (int64_t i = 0; i < kSide; ++i) tile[i] = reinterpret_cast<BitVec>(block[i]);
        });
    }

private:
    static constexpr int64_t kSteps = kBlock / 2;  // of a block's tokens

    LOCKSTEP_INLINE static BitVec rounded(Vec first, Vec second) {
        return reinterpret_cast<BitVec>(_mm512_cvtne2ps_pbh(reinterpret_cast<__m512>(second), reinterpret_cast<__m512>(first)));
    }
    // Pairs of one lane each.
    LOCKSTEP_INLINE static BitVec interleaved(Vec low, Vec high) {
        using Words = uint16_t __attribute__((vector_size(64)));
        const auto words = reinterpret_cast<Words>(rounded(low, high));
        return reinterpret_cast<BitVec>(__builtin_shufflevector(words, words, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7,
                                                                23, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15,
                                                                31));
    }

    // to += left x, x made by make_tile(token, lane, tile): pairs of 32 tokens for 16 lanes.
    LOCKSTEP_INLINE static void add(Range tokens, int64_t d, const Bf16Pair* left, float* to, const auto& make_tile) {
        alignas(64) Bf16Pair right[kSteps * TileMath::kColumns];
        const int64_t first = tokens.begin / kStep * kStep, steps = (round_up(tokens.end, kStep) - first) / 2;
        for (int64_t s = 0; s < steps; s += kSide)
            for (int64_t tile = 0; tile < 2; ++tile) {
                BitVec rows[kSide];
                make_tile(first + 2 * s, tile * kSide, rows);
                __builtin_memcpy(right + 2 * s * kSide + tile * kPairs, rows, sizeof rows);
            }
        for (int64_t i = 0; i < d; i += TileMath::kRows) {
            TileMath::load_sums(to + i * kBlock, kBlock);
            TileMath::multiply(steps, left + i * kSteps + first * kSide, right, [] {});
            TileMath::store_sums(to + i * kBlock, kBlock);
        }
    }
};

}  // namespace lockstep::kernels::cpu::LOCKSTEP_ISA
