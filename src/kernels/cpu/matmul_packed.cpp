// The packed matrix product of one thread, after Goto and van de Geijn, "Anatomy of High-Performance Matrix
// Multiplication" (TOMS 2008), with the loop names of BLIS. Compiled once per instruction set.
#include <algorithm>
#include <type_traits>

#include "kernels/cpu/matmul.h"
#include "kernels/cpu/matmul_blocks.h"
#include "kernels/cpu/tile.h"

namespace lockstep::kernels::cpu::LOCKSTEP_ISA {

extern const PackedMatmuls packed_matmul;

namespace {

// One operand, cut along `outer` (M or N). Contiguous along outer when `along_outer`, else along K.
template <class T>
struct Operand {
    const T* data;
    int64_t stride;
    bool along_outer;
};

// A panel as wide as a tile's columns is copied by vectors; narrower ones come from a line of floats that is widened first.
template <int Width>
LOCKSTEP_INLINE void copy_row(const float* from, float* to) {
    __builtin_memcpy(to, from, Width * 4);
}
template <int Width>
LOCKSTEP_INLINE void copy_row(const Bf16* from, float* to) {
    static_assert(Width % kLanes == 0);
    for (int i = 0; i < Width; i += kLanes) store(to + i, load(from + i));
}

// Copies `count` of outer, contiguous, and `k` of K into panels to[panel][k][Width], without the last panel if it is not full.
template <int Width, class T>
void pack_panels(const T* from, int64_t stride, int64_t whole, int64_t k, float* to) {
    // Some panels at a time, row by row: reads run along memory, which matters where the operand comes from DRAM
    // (head of 32000 x 512 on 128 tokens, dX: 76 -> 84 GFLOP/s on Zen 3).
    constexpr int64_t kGroup = Width == kTileColumns ? 32 : 1;
    for (int64_t i0 = 0; i0 < whole; i0 += kGroup * Width)
        for (int64_t p = 0; p < k; ++p)
            for (int64_t i = i0; i < std::min(whole, i0 + kGroup * Width); i += Width)
                copy_row<Width>(from + p * stride + i, to + i * k + p * Width);
}
template <int Width>
void pack_widened_panels(const Bf16* from, int64_t stride, int64_t whole, int64_t k, float* to) {
    constexpr int64_t kLine = 256 / Width * Width;
    alignas(64) float line[kLine + kLanes];
    for (int64_t i0 = 0; i0 < whole; i0 += kLine) {
        const int64_t count = std::min(kLine, whole - i0);
        for (int64_t p = 0; p < k; ++p) {
            for (int64_t i = 0; i < count; i += kLanes) store(line + i, load(from + p * stride + i0 + i, count - i));
            for (int64_t i = 0; i < count; i += Width) copy_row<Width>(line + i, to + (i0 + i) * k + p * Width);
        }
    }
}

// Copies `count` of outer and `k` of K into panels to[panel][k][Width]; a last panel is filled up with zeros.
template <int Width, class T>
void pack(const Operand<T>& x, int64_t outer, int64_t count, int64_t p0, int64_t k, float* to) {
    const int64_t whole = count / Width * Width, rest = count - whole;
    if (rest > 0) std::fill(to + whole * k, to + (whole + Width) * k, 0.0f);
    if (x.along_outer) {
        const T* from = x.data + p0 * x.stride + outer;
        if constexpr (std::is_same_v<T, Bf16> && Width % kLanes != 0) pack_widened_panels<Width>(from, x.stride, whole, k, to);
        else pack_panels<Width>(from, x.stride, whole, k, to);
        for (int64_t p = 0; p < k; ++p)
            for (int64_t i = 0; i < rest; ++i) to[whole * k + p * Width + i] = from[p * x.stride + whole + i];
        return;
    }
    const T* from = x.data + outer * x.stride + p0;
    for (int64_t i = 0; i < count; i += Width, from += Width * x.stride, to += Width * k)
        for (int64_t j = 0; j < std::min<int64_t>(Width, count - i); j += kLanes)
            transpose_strip(std::min<int64_t>({kLanes, Width - j, count - i - j}), k, from + j * x.stride, x.stride, to + j,
                            Width);
}

// How operands are packed and multiplied. Floats: a step of K at a time, bfloat16 widened while it is packed.
struct FloatMath {
    using Element = float;
    static int64_t steps(int64_t k) { return k; }
    template <int Width, class T>
    static void pack_block(const Operand<T>& x, int64_t outer, int64_t count, int64_t p0, int64_t k, float* to) {
        pack<Width>(x, outer, count, p0, k, to);
    }
    template <class Out>
    static void tile(int64_t rows, int64_t steps, const float* a, const float* b, const float* partial, int64_t partial_stride,
                     Out* c, int64_t c_stride) {
        kTiles<Out>[rows - 1](steps, a, kTileRows, b, kTileColumns, partial, partial_stride, c, c_stride);
    }
};

// Pairs: two steps of K at a time, as the processor's bfloat16 dot product takes them.
struct PairMath {
    using Element = Bf16Pair;
    static int64_t steps(int64_t k) { return (k + 1) / 2; }
    template <int Width>
    static void pack_block(const Operand<Bf16>& x, int64_t outer, int64_t count, int64_t p0, int64_t k, Bf16Pair* to) {
        const int64_t n = steps(k);
        for (int64_t i0 = 0; i0 < count; i0 += Width, to += Width * n) {
            const int64_t width = std::min<int64_t>(Width, count - i0);
            if (width < Width) std::fill(to, to + Width * n, Bf16Pair{});
            if (x.along_outer) pack_rows<Width>(x.data + p0 * x.stride + outer + i0, x.stride, width, k, to);
            else pack_columns<Width>(x.data + (outer + i0) * x.stride + p0, x.stride, width, k, to);
        }
    }
    template <class Out>
    static void tile(int64_t rows, int64_t steps, const Bf16Pair* a, const Bf16Pair* b, const float* partial,
                     int64_t partial_stride, Out* c, int64_t c_stride) {
        kPairTiles<Out>[rows - 1](steps, a, b, partial, partial_stride, c, c_stride);
    }

private:
    // Contiguous along outer: pairs come from two rows.
    template <int Width>
    static void pack_rows(const Bf16* from, int64_t stride, int64_t width, int64_t k, Bf16Pair* to) {
        for (int64_t p = 0; p < k; p += 2, to += Width) {
            const Bf16 *low = from + p * stride, *high = low + stride;
            for (int64_t i = 0; i < width; ++i) to[i] = {low[i].bits, p + 1 < k ? high[i].bits : uint16_t{0}};
        }
    }
    // Contiguous along K: pairs stand side by side, and are transposed as 32-bit numbers.
    template <int Width>
    static void pack_columns(const Bf16* from, int64_t stride, int64_t width, int64_t k, Bf16Pair* to) {
        for (int64_t i = 0; i < width; ++i) {
            const Bf16* row = from + i * stride;
            for (int64_t p = 0; p + 1 < k; p += 2) to[p / 2 * Width + i] = {row[p].bits, row[p + 1].bits};
            if (k % 2 == 1) to[k / 2 * Width + i] = {row[k - 1].bits, 0};
        }
    }
};

// Where the sums over the blocks of K before this one stand, if there are any, and where to put the sums with this one.
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
    alignas(64) float buffer[kTileRows * kTileColumns];
    Math::template tile<float>(rows, steps, a, b, nullptr, 0, buffer, kTileColumns);
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < columns; ++j)
            to.c[i * to.stride + j] =
                Out(buffer[i * kTileColumns + j] + (to.partial ? to.partial[i * to.partial_stride + j] : 0.0f));
}

template <class Math, class Out>
void multiply_blocks(int64_t m, int64_t n, int64_t steps, const typename Math::Element* a, const typename Math::Element* b,
                     const Target<Out>& target) {
    for (int64_t j = 0; j < n; j += kTileColumns) {
        const int64_t columns = std::min<int64_t>(kTileColumns, n - j);
        for (int64_t i = 0; i < m; i += kTileRows) {
            const int64_t rows = std::min<int64_t>(kTileRows, m - i);
            const Target<Out> to = target.at(i, j);
            if (columns != kTileColumns) narrow_tile<Math>(rows, columns, steps, a + i * steps, b + j * steps, to);
            else
                Math::template tile<Out>(rows, steps, a + i * steps, b + j * steps, to.partial, to.partial_stride, to.c,
                                         to.stride);
        }
    }
}

// With results in bfloat16 the sums over blocks of K before the last stand in `workspace`, as floats.
template <class In, class Out, class Math = FloatMath>
void packed_matmul_of(const MatmulShape& s, const In* a, const In* b, Out* c, const Out* start, float* workspace) {
    const Operand<In> left{a, s.lda, s.transpose_a == Transpose::yes}, right{b, s.ldb, s.transpose_b == Transpose::no};
    const MatmulBlocks blocks = matmul_blocks(s);
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
            Math::template pack_block<kTileColumns>(right, j, n, p, k, packed_b);
            for (int64_t i = 0; i < s.m; i += blocks.m) {
                const int64_t m = std::min(blocks.m, s.m - i);
                Math::template pack_block<kTileRows>(left, i, m, p, k, packed_a);
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

}  // namespace

constinit const PackedMatmuls packed_matmul{packed_matmul_of<float, float>, packed_matmul_of<Bf16, Bf16>,
                                            packed_matmul_of<Bf16, float>, packed_matmul_of<Bf16, Bf16, PairMath>,
                                            packed_matmul_of<Bf16, float, PairMath>};

}  // namespace lockstep::kernels::cpu::LOCKSTEP_ISA
