// The packed matrix product of one thread, after Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication"
// (TOMS 2008), with the loop names of BLIS. `Math` packs blocks of the operands and multiplies a tile of them:
//   Element, of four bytes; kKernel, whose blocks it takes; kRows x kColumns of C in a tile
//   steps(k): Elements of k steps of the sum
//   pack_block<side>(x, outer, count, p0, k, to): panels of kRows or kColumns, the last filled up with zeros
//   tile<Out>(rows, steps, a, b, partial, partial_stride, c, c_stride): the first `rows` of a tile, all its columns
// Include only from sources compiled once per instruction set.
#pragma once

#include <algorithm>
#include <type_traits>

#include "kernels/cpu/matmul.h"
#include "kernels/cpu/matmul_blocks.h"
#include "kernels/cpu/simd.h"

namespace lockstep::kernels::cpu::LOCKSTEP_ISA {

enum class Side { left, right };

// One operand, cut along `outer` (M or N). Contiguous along outer when `along_outer`, else along K.
template <class T>
struct Operand {
    const T* data;
    int64_t stride;
    bool along_outer;
};

// Where the sums over the blocks of K before this one are, if there are any, and where to put the sums with this one.
template <class Out>
struct Target {
    const float* partial;  // or nullptr
    int64_t partial_stride;
    Out* c;
    int64_t stride;
    Target at(int64_t i, int64_t j) const {
        return {partial ? partial + i * partial_stride + j : nullptr, partial_stride, c + i * stride + j, stride};
    }
};

// A last panel narrower than a tile goes through a small buffer, because a tile writes whole vectors.
template <class Math, class Out>
void narrow_tile(int64_t rows, int64_t columns, int64_t steps, const typename Math::Element* a, const typename Math::Element* b,
                 const Target<Out>& to) {
    alignas(64) float buffer[Math::kRows * Math::kColumns];
    Math::template tile<float>(rows, steps, a, b, nullptr, 0, buffer, Math::kColumns);
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < columns; ++j)
            to.c[i * to.stride + j] =
                Out(buffer[i * Math::kColumns + j] + (to.partial ? to.partial[i * to.partial_stride + j] : 0.0f));
}

template <class Math, class Out>
void multiply_blocks(int64_t m, int64_t n, int64_t steps, const typename Math::Element* a, const typename Math::Element* b,
                     const Target<Out>& target) {
    for (int64_t j = 0; j < n; j += Math::kColumns) {
        const int64_t columns = std::min<int64_t>(Math::kColumns, n - j);
        for (int64_t i = 0; i < m; i += Math::kRows) {
            const int64_t rows = std::min<int64_t>(Math::kRows, m - i);
            const Target<Out> to = target.at(i, j);
            if (columns != Math::kColumns) narrow_tile<Math>(rows, columns, steps, a + i * steps, b + j * steps, to);
            else
                Math::template tile<Out>(rows, steps, a + i * steps, b + j * steps, to.partial, to.partial_stride, to.c,
                                         to.stride);
        }
    }
}

// With narrow results the sums over blocks of K before the last are in `workspace`, as floats.
template <class In, class Out, class Math>
void packed_matmul_of(const MatmulShape& s, const In* a, const In* b, Out* c, const Out* start, float* workspace) {
    const Operand<In> left{a, s.lda, s.transpose_a == Transpose::yes}, right{b, s.ldb, s.transpose_b == Transpose::no};
    const MatmulBlocks blocks = matmul_blocks(s, Math::kKernel);
    using Element = typename Math::Element;
    static_assert(sizeof(Element) == sizeof(float));
    auto* const packed_b = reinterpret_cast<Element*>(workspace);
    Element* const packed_a = packed_b + blocks.packed_b_floats();
    float* const sums = workspace + blocks.packed_b_floats() + blocks.packed_a_floats();  // [m, blocks.n]
    for (int64_t i = 0; i < s.m && s.k == 0; ++i)
        for (int64_t j = i * s.ldc; j < i * s.ldc + s.n; ++j) c[j] = start ? start[j] : Out(0.0f);
    for (int64_t j = 0; j < s.n; j += blocks.n) {
        const int64_t n = std::min(blocks.n, s.n - j);
        for (int64_t p = 0; p < s.k; p += blocks.k) {
            const int64_t k = std::min(blocks.k, s.k - p), steps = Math::steps(k);
            Math::template pack_block<Side::right>(right, j, n, p, k, packed_b);
            for (int64_t i = 0; i < s.m; i += blocks.m) {
                const int64_t m = std::min(blocks.m, s.m - i);
                Math::template pack_block<Side::left>(left, i, m, p, k, packed_a);
                Out* to = c + i * s.ldc + j;
                if constexpr (std::is_same_v<Out, float>) {
                    const float* before = p > 0 ? to : start ? start + (to - c) : nullptr;
                    multiply_blocks<Math, float>(m, n, steps, packed_a, packed_b, {before, s.ldc, to, s.ldc});
                } else {
                    float* between = sums + i * blocks.n;
                    const float* before = p > 0 ? between : nullptr;
                    if (p + k < s.k)
                        multiply_blocks<Math, float>(m, n, steps, packed_a, packed_b, {before, blocks.n, between, blocks.n});
                    else multiply_blocks<Math, Out>(m, n, steps, packed_a, packed_b, {before, blocks.n, to, s.ldc});
                }
            }
        }
    }
}

}  // namespace lockstep::kernels::cpu::LOCKSTEP_ISA
