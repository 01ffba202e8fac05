// The packed matrix products in vector registers: of floats, and of pairs of bfloat16. Compiled once per instruction set.
#include "kernels/cpu/matmul_loops.h"
#include "kernels/cpu/tile.h"

namespace lockstep::kernels::cpu::LOCKSTEP_ISA {

extern const PackedMatmuls packed_matmul;

namespace {

// A panel as wide as a tile's columns is copied by vectors; narrower ones come from a line of floats that is widened first.
template <int Width>
LOCKSTEP_INLINE void copy_row(const float* from, float* to) {
    __builtin_memcpy(to, from, Width * 4);
}
template <int Width, class T>
LOCKSTEP_INLINE void copy_row(const T* from, float* to) {
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
template <int Width, class T>
void pack_widened_panels(const T* from, int64_t stride, int64_t whole, int64_t k, float* to) {
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
        if constexpr (!std::is_same_v<T, float> && Width % kLanes != 0) pack_widened_panels<Width>(from, x.stride, whole, k, to);
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

// How operands are packed and multiplied. Floats: a step of K at a time, narrow types widened while they are packed.
struct FloatMath {
    using Element = float;
    static constexpr MatmulKernel kKernel = MatmulKernel::packed;
    static constexpr int kRows = kTileRows, kColumns = kTileColumns;
    static int64_t steps(int64_t k) { return k; }
    template <Side side, class T>
    static void pack_block(const Operand<T>& x, int64_t outer, int64_t count, int64_t p0, int64_t k, float* to) {
        pack<side == Side::left ? kRows : kColumns>(x, outer, count, p0, k, to);
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
    static constexpr MatmulKernel kKernel = MatmulKernel::bf16_dot;
    static constexpr int kRows = kTileRows, kColumns = kTileColumns;
    static int64_t steps(int64_t k) { return (k + 1) / 2; }
    template <Side side>
    static void pack_block(const Operand<Bf16>& x, int64_t outer, int64_t count, int64_t p0, int64_t k, Bf16Pair* to) {
        constexpr int kWidth = side == Side::left ? kRows : kColumns;
        const int64_t n = steps(k);
        for (int64_t i0 = 0; i0 < count; i0 += kWidth, to += kWidth * n) {
            const int64_t width = std::min<int64_t>(kWidth, count - i0);
            if (width < kWidth) std::fill(to, to + kWidth * n, Bf16Pair{});
            if (x.along_outer) pack_rows<kWidth>(x.data + p0 * x.stride + outer + i0, x.stride, width, k, to);
            else pack_columns<kWidth>(x.data + (outer + i0) * x.stride + p0, x.stride, width, k, to);
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
    // Contiguous along K: pairs are side by side, and are transposed as 32-bit numbers.
    template <int Width>
    static void pack_columns(const Bf16* from, int64_t stride, int64_t width, int64_t k, Bf16Pair* to) {
        for (int64_t i = 0; i < width; ++i) {
            const Bf16* row = from + i * stride;
            for (int64_t p = 0; p + 1 < k; p += 2) to[p / 2 * Width + i] = {row[p].bits, row[p + 1].bits};
            if (k % 2 == 1) to[k / 2 * Width + i] = {row[k - 1].bits, 0};
        }
    }
};

}  // namespace

constinit const PackedMatmuls packed_matmul(FloatMatmuls([]<class In, class Out>() {
                                                return packed_matmul_of<In, Out, FloatMath>;
                                            }),
                                            {packed_matmul_of<Bf16, Bf16, PairMath>, packed_matmul_of<Bf16, float, PairMath>});

}  // namespace lockstep::kernels::cpu::LOCKSTEP_ISA
