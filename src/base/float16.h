// float16 (IEEE binary16) as a storage type. Arithmetic happens in float or double; a store rounds to the nearest, ties to
// even, keeps NaN, and makes what lies beyond 65504 infinite. All of it is inlined always, so that sources compiled for one
// instruction set may use it. No conversion makes a float below 2^-126:
// processors that flush those to zero give the same results.
#pragma once

#include <bit>
#include <cstdint>

#include "base/bfloat16.h"

namespace lockstep {

struct F16 {
    uint16_t bits;

    F16() = default;
    LOCKSTEP_ALWAYS_INLINE explicit F16(float x) : bits(rounded(std::bit_cast<uint32_t>(x))) {}
    // One rounding, not two: the float between is truncated, its last bit saying that something was cut off.
    LOCKSTEP_ALWAYS_INLINE explicit F16(double x) {
        const auto near = static_cast<float>(x);
        uint32_t u = std::bit_cast<uint32_t>(near);
        const double difference = static_cast<double>(near) - x;
        if (difference > 0 || difference < 0) u = (u - ((difference > 0) == (x > 0) ? 1u : 0u)) | 1u;
        bits = rounded(u);
    }
    LOCKSTEP_ALWAYS_INLINE operator float() const {
        constexpr uint32_t kExponent = 0x7c00u << 13, kRebias = (127u - 15u) << 23;
        uint32_t u = (bits & 0x7fffu) << 13;
        const uint32_t exponent = u & kExponent;
        u += kRebias;
        if (exponent == kExponent) u += (128u - 16u) << 23;  // infinite or NaN
        if (exponent == 0) {                                 // below 2^-14: counted in steps of 2^-24
            const float steps = std::bit_cast<float>(u + (1u << 23)) - 0x1p-14f;
            u = std::bit_cast<uint32_t>(steps);
        }
        return std::bit_cast<float>(u | static_cast<uint32_t>(bits & 0x8000u) << 16);
    }

private:
    LOCKSTEP_ALWAYS_INLINE static uint16_t rounded(uint32_t u) {
        const uint32_t sign = u >> 16 & 0x8000u;
        u &= 0x7fffffffu;
        if (u >= 0x47800000u) return static_cast<uint16_t>(sign | (u > 0x7f800000u ? 0x7e00u : 0x7c00u));
        if (u < 0x38800000u)  // below 2^-14: the sum's last bit counts 2^-24
            return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(std::bit_cast<float>(u) + 0.5f) - 0x3f000000u));
        return static_cast<uint16_t>(sign | ((u - ((127u - 15u) << 23) + 0xfffu + (u >> 13 & 1u)) >> 13));
    }
};
static_assert(sizeof(F16) == 2);

}  // namespace lockstep
