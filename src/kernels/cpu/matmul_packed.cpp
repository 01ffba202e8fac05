// The packed matrix product of one thread, after Goto and van de Geijn, "Anatomy of High-Performance Matrix
// Multiplication" (TOMS 2008), with the loop names of BLIS. Compiled once per instruction set.
#include <algorithm>

#include "kernels/cpu/matmul.h"
#include "kernels/cpu/matmul_blocks.h"
#include "kernels/cpu/tile.h"

namespace lockstep::kernels::cpu::LOCKSTEP_ISA {

PackedMatmul packed_matmul;

namespace {

// One operand, cut along `outer` (M or N). Contiguous along outer when `along_outer`, else along K.
struct Operand {
    const float* data;
    int64_t stride;
    bool along_outer;
};

// Copies `count` of outer and `k` of K into panels to[panel][k][Width]; a last panel is filled up with zeros.
template <int Width>
void pack(const Operand& x, int64_t outer, int64_t count, int64_t p0, int64_t k, float* to) {
    const int64_t whole = count / Width * Width, rest = count - whole;
    if (rest > 0) std::fill(to + whole * k, to + (whole + Width) * k, 0.0f);
    if (x.along_outer) {
        const float* from = x.data + p0 * x.stride + outer;
        // Some panels at a time, row by row: reads run along memory, which matters where the operand comes from DRAM
        // (head of 32000 x 512 on 128 tokens, dX: 76 -> 84 GFLOP/s on Zen 3).
        constexpr int64_t kGroup = Width == kTileColumns ? 32 : 1;
        for (int64_t i0 = 0; i0 < whole; i0 += kGroup * Width)
            for (int64_t p = 0; p < k; ++p)
                for (int64_t i = i0; i < std::min(whole, i0 + kGroup * Width); i += Width)
                    __builtin_memcpy(to + i * k + p * Width, from + p * x.stride + i, Width * 4);
        for (int64_t p = 0; p < k; ++p)
            for (int64_t i = 0; i < rest; ++i) to[whole * k + p * Width + i] = from[p * x.stride + whole + i];
        return;
    }
    const float* from = x.data + outer * x.stride + p0;
    for (int64_t i = 0; i < count; i += Width, from += Width * x.stride, to += Width * k)
        for (int64_t j = 0; j < std::min<int64_t>(Width, count - i); j += kLanes)
            transpose_strip(std::min<int64_t>({kLanes, Width - j, count - i - j}), k, from + j * x.stride, x.stride, to + j,
                            Width);
}

// A last panel narrower than a tile goes through a small buffer, because a tile writes whole vectors.
void narrow_tile(int64_t rows, int64_t columns, int64_t k, const float* a, const float* b, float* c, int64_t ldc, Write write) {
    alignas(64) float buffer[kTileRows * kTileColumns];
    kTiles[rows - 1](k, a, kTileRows, b, kTileColumns, buffer, kTileColumns, Write::replace);
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < columns; ++j)
            c[i * ldc + j] = buffer[i * kTileColumns + j] + (write == Write::add ? c[i * ldc + j] : 0.0f);
}

void multiply_blocks(int64_t m, int64_t n, int64_t k, const float* a, const float* b, float* c, int64_t ldc, Write write) {
    for (int64_t j = 0; j < n; j += kTileColumns) {
        const int64_t columns = std::min<int64_t>(kTileColumns, n - j);
        for (int64_t i = 0; i < m; i += kTileRows) {
            const int64_t rows = std::min<int64_t>(kTileRows, m - i);
            float* to = c + i * ldc + j;
            if (columns == kTileColumns) kTiles[rows - 1](k, a + i * k, kTileRows, b + j * k, kTileColumns, to, ldc, write);
            else narrow_tile(rows, columns, k, a + i * k, b + j * k, to, ldc, write);
        }
    }
}

}  // namespace

void packed_matmul(const MatmulShape& s, const float* a, const float* b, float* c, bool accumulate, float* workspace) {
    const Operand left{a, s.lda, s.transpose_a == Transpose::yes}, right{b, s.ldb, s.transpose_b == Transpose::no};
    const MatmulBlocks blocks = matmul_blocks(s);
    float* packed_b = workspace;
    float* packed_a = workspace + blocks.packed_b_floats();
    if (s.k == 0 && !accumulate)
        for (int64_t i = 0; i < s.m; ++i) std::fill(c + i * s.ldc, c + i * s.ldc + s.n, 0.0f);
    for (int64_t j = 0; j < s.n; j += blocks.n) {
        const int64_t n = std::min(blocks.n, s.n - j);
        for (int64_t p = 0; p < s.k; p += blocks.k) {
            const int64_t k = std::min(blocks.k, s.k - p);
            const Write write = accumulate || p > 0 ? Write::add : Write::replace;
            pack<kTileColumns>(right, j, n, p, k, packed_b);
            for (int64_t i = 0; i < s.m; i += blocks.m) {
                const int64_t m = std::min(blocks.m, s.m - i);
                pack<kTileRows>(left, i, m, p, k, packed_a);
                multiply_blocks(m, n, k, packed_a, packed_b, c + i * s.ldc + j, s.ldc, write);
            }
        }
    }
}

}  // namespace lockstep::kernels::cpu::LOCKSTEP_ISA
