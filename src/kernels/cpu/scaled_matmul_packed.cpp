// Products of float8 matrices in vector registers: of floats, and of pairs of bfloat16. Compiled once per instruction set.
#include "kernels/cpu/scaled_matmul_loops.h"

namespace lockstep::kernels::cpu::LOCKSTEP_ISA {

extern const ScaledMatmuls packed_scaled_matmul;

namespace {

// Panels are [element of K][kRows or kColumns].
template <class E>
struct PanelsOfVectors {
    using Element = E;
    static constexpr int kRows = kTileRows, kColumns = kTileColumns;
    template <Side>
    static constexpr bool is_by_rows() {
        return false;
    }
    // All but the last vector may be too long: what follows overwrites it.
    template <Side side>
    LOCKSTEP_INLINE static void put(const Vec* strip, int64_t rows, int64_t i, int64_t step, Element* panel) {
        constexpr int kWidth = side == Side::left ? kRows : kColumns;
        auto* to = reinterpret_cast<float*>(panel) + step * kWidth + i;
        for (int64_t s = 0; s + 1 < rows; ++s, to += kWidth) store(to, strip[s]);
        store(to, strip[rows - 1], std::min(kWidth, kLanes));
    }
};

struct FloatCodes : PanelsOfVectors<float> {
    static constexpr MatmulKernel kKernel = MatmulKernel::packed;
    static constexpr int kSteps = 1;
    static int64_t steps(int64_t k) { return k; }
    LOCKSTEP_INLINE static Vec element(const std::array<Vec, 1>& values) { return values[0]; }
    template <class Out>
    static void tile(int64_t rows, int64_t steps, const float* a, const float* b, const float* partial, int64_t partial_stride,
                     Out* c, int64_t c_stride, SumScales scales) {
        kTiles<Out, SumScales>[rows - 1](steps, a, kTileRows, b, kTileColumns, partial, partial_stride, c, c_stride, scales);
    }
};

struct PairCodes : PanelsOfVectors<Bf16Pair> {
    static constexpr MatmulKernel kKernel = MatmulKernel::bf16_dot;
    static constexpr int kSteps = 2;
    static int64_t steps(int64_t k) { return (k + 1) / 2; }
    LOCKSTEP_INLINE static Vec element(const std::array<Vec, 2>& values) { return pair_of(values[0], values[1]); }
    template <class Out>
    static void tile(int64_t rows, int64_t steps, const Bf16Pair* a, const Bf16Pair* b, const float* partial,
                     int64_t partial_stride, Out* c, int64_t c_stride, SumScales scales) {
        kPairTiles<Out, SumScales>[rows - 1](steps, a, b, partial, partial_stride, c, c_stride, scales);
    }
};

}  // namespace

constinit const ScaledMatmuls packed_scaled_matmul{
    ScaledMatmulKernel([]<class Out>() { return scaled_matmul_of<FloatCodes, Out>; }),
    ScaledMatmulKernel([]<class Out>() { return scaled_matmul_of<PairCodes, Out>; }),
    {}};

}  // namespace lockstep::kernels::cpu::LOCKSTEP_ISA
