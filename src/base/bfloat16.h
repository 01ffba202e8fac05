// bfloat16 as a storage type: the upper half of a float. Arithmetic happens in float or double; a store rounds to the nearest,
// ties to even, and keeps NaN. All of it is inlined always, so that sources compiled for one instruction set may use it.
#pragma once

#include <bit>
#include <cstdint>

namespace lockstep {

#if defined(__CUDACC__) || defined(__HIPCC__)
#define LOCKSTEP_ALWAYS_INLINE __host__ __device__ inline __attribute__((always_inline))
#else
#define LOCKSTEP_ALWAYS_INLINE [[gnu::always_inline]]
#endif

struct Bf16 {
    uint16_t bits;

    Bf16() = default;
    LOCKSTEP_ALWAYS_INLINE explicit Bf16(float x) : bits(rounded(std::bit_cast<uint32_t>(x))) {}
    // One rounding, not two: where the float lies exactly between two results, the side on which x lies decides.
    LOCKSTEP_ALWAYS_INLINE explicit Bf16(double x) {
        const float near = static_cast<float>(x);
        uint32_t u = std::bit_cast<uint32_t>(near);
        if ((u & 0xffff) == 0x8000 && static_cast<double>(near) != x && x == x)
            u += (static_cast<double>(near) < x) == (x > 0) ? 1u : ~0u;
        bits = rounded(u);
    }
    LOCKSTEP_ALWAYS_INLINE operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

private:
    LOCKSTEP_ALWAYS_INLINE static uint16_t rounded(uint32_t u) {
        if ((u & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>(u >> 16 | 0x40);  // NaN stays NaN
        return static_cast<uint16_t>((u + 0x7fff + (u >> 16 & 1)) >> 16);
    }
};
static_assert(sizeof(Bf16) == 2);

}  // namespace lockstep
