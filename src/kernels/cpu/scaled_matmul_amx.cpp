// Products of float8 matrices by AMX.
#include "kernels/cpu/amx_tiles.h"
#include "kernels/cpu/scaled_matmul_loops.h"

namespace lockstep::kernels::cpu::LOCKSTEP_ISA {

extern const ScaledMatmulKernel packed_scaled_matmul;

namespace {

// Panels as those of TileMath: two tiles next to each other, those of A by rows.
struct TileCodes {
    using Element = Bf16Pair;
    static constexpr MatmulKernel kKernel = MatmulKernel::amx;
    static constexpr int kRows = TileMath::kRows, kColumns = TileMath::kColumns;
    static constexpr int kSteps = 2;
    static_assert(kLanes == kSide);
    static int64_t steps(int64_t k) { return TileMath::steps(k); }
    LOCKSTEP_INLINE static Vec element(const std::array<Vec, 2>& values) { return pair_of(values[0], values[1]); }
    template <Side side>
    static constexpr bool is_by_rows() {
        return side == Side::left;
    }
    template <Side>
    LOCKSTEP_INLINE static void put(const Vec* strip, int64_t, int64_t i, int64_t step, Element* panel) {
        __builtin_memcpy(panel + step / kSide * 2 * kPairs + i / kSide * kPairs, strip, kPairs * sizeof(Element));
    }
    template <class Out>
    __attribute__((noinline)) static void tile(int64_t rows, int64_t steps, const Bf16Pair* a, const Bf16Pair* b,
                                               const float* partial, int64_t partial_stride, Out* c, int64_t c_stride,
                                               SumScales scales) {
        alignas(64) float sums[kRows * kColumns];
        TileMath::load_sums(nullptr, 0);
        TileMath::multiply(steps, a, b, [] {});
        TileMath::store_sums(sums, kColumns);
        for (int64_t i = 0; i < rows; ++i) {
            Vec row[2];
            for (int j = 0; j < 2; ++j)
                row[j] = load(sums + i * kColumns + j * kLanes) * scales.rows[i] * load(scales.columns + j * kLanes);
            if (partial) {  // no fma across the branch
                for (int j = 0; j < 2; ++j) row[j] += load(partial + i * partial_stride + j * kLanes);
            }
            for (int j = 0; j < 2; ++j) store(c + i * c_stride + j * kLanes, row[j]);
        }
    }
};

template <class Out>
void amx_scaled_matmul(const ScaledPart& part, Out* c, const float* before, float* workspace) {
    const TileSession session;
    scaled_matmul_of<TileCodes, Out>(part, c, before, workspace);
}

}  // namespace

constinit const ScaledMatmulKernel packed_scaled_matmul([]<class Out>() { return amx_scaled_matmul<Out>; });

}  // namespace lockstep::kernels::cpu::LOCKSTEP_ISA
