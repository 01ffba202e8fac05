// Attention's products (attention_products.h) of floats: operands are widened while they are packed.
#pragma once

#include "kernels/cpu/attention_blocks.h"
#include "kernels/cpu/matmul_loops.h"

namespace lockstep::kernels::cpu::LOCKSTEP_ISA {

struct Products {
    using Element = float;
    static constexpr AttentionKernel kKernel = AttentionKernel::floats;
    template <class T>
    static constexpr bool kTakes = true;
    static constexpr bool kScalesQueries = true;
    struct Session {};

    template <Side, class T>
    static void pack(int64_t count, int64_t d, const T* from, int64_t stride, float* to) {
        pack_transposed(count, d, from, stride, to);
    }
    template <class T>
    static void pack_over_tokens(int64_t count, int64_t d, const T* from, int64_t stride, float* to) {
        pack_rows(count, d, from, stride, to);
    }
    static void scale_queries(int64_t d, float scale, float* packed) { scale_in_place(packed, d * kBlock, scale); }

    static void scores(Range rows, int64_t column, int64_t d, const float* left, const float* right, float* to) {
        block_product(rows.count(), kTileColumns, d, left + rows.begin, kBlock, right + column, kBlock,
                      to + rows.begin * kBlock + column, kBlock, Write::replace);
    }
    static void add_product(Range tokens, int64_t column, int64_t d, const float* left, const float* x, float* to) {
        block_product(d, kTileColumns, tokens.count(), left + tokens.begin * d, d, x + tokens.begin * kBlock + column, kBlock,
                      to + column, kBlock, Write::add);
    }
    static void add_transposed(Range tokens, int64_t column, int64_t d, const float* left, const float* x, float* to) {
        alignas(64) float transposed[kBlock * kTileColumns];
        for (int64_t i = 0; i < kTileColumns; i += kLanes)
            transpose_strip(kLanes, kBlock, x + (column + i) * kBlock, kBlock, transposed + i, kTileColumns);
        block_product(d, kTileColumns, tokens.count(), left + tokens.begin * d, d, transposed + tokens.begin * kTileColumns,
                      kTileColumns, to + column, kBlock, Write::add);
    }
};

}  // namespace lockstep::kernels::cpu::LOCKSTEP_ISA
