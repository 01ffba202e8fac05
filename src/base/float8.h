// float8 as storage types (Micikevicius et al. 2022, arXiv 2209.05433): E4M3 without infinities, up to 448, and E5M2, up to
// 57344. A value is code x scale; the scale is next to the tensor. A store clamps to the largest value, then rounds to the
// nearest, ties to even; NaN stays NaN, and an infinity becomes the largest value. Reads are exact. All of it is inlined always,
// so that sources compiled for one instruction set may use it. No conversion makes a float below 2^-126: processors that flush
// those to zero give the same results.
// E8M0 stores the scales of blocks (OCP Microscaling Formats 1.0): one power of two, or NaN.
#pragma once

#include <bit>
#include <cstdint>

#include "base/bfloat16.h"
#include "base/dtype.h"

namespace lockstep {

// Bits of the exponent and of the mantissa.
template <int exponent_bits, int mantissa_bits>
struct Float8 {
    static_assert(exponent_bits + mantissa_bits == 7);
    static constexpr int kBias = (1 << (exponent_bits - 1)) - 1;
    static constexpr bool kHasInfinity = exponent_bits == 5;
    static constexpr float kLargest = kHasInfinity ? 57344.0F : 448.0F;

    uint8_t bits;

    Float8() = default;
    LOCKSTEP_ALWAYS_INLINE explicit Float8(float x) : bits(rounded(std::bit_cast<uint32_t>(x))) {}
    // One rounding, not two: the float between is truncated, its last bit saying that something was cut off.
    LOCKSTEP_ALWAYS_INLINE explicit Float8(double x) {
        const auto near = static_cast<float>(x);
        uint32_t u = std::bit_cast<uint32_t>(near);
        const double difference = static_cast<double>(near) - x;
        if (difference > 0 || difference < 0) u = (u - ((difference > 0) == (x > 0) ? 1u : 0u)) | 1u;
        bits = rounded(u);
    }
    LOCKSTEP_ALWAYS_INLINE operator float() const {
        constexpr uint32_t kRebias = (127u - kBias) << 23, kOneMore = 1u << 23;
        constexpr auto kLeastNormal = std::bit_cast<float>(kRebias + kOneMore);
        uint32_t u = (bits & 0x7fu) << kShift;
        const bool is_below = u < kOneMore;  // counted in steps of the least exponent
        const bool is_last = u >= (kHasInfinity ? 0x7cu << kShift : 0x7fu << kShift);
        const float steps = std::bit_cast<float>(u + kRebias + kOneMore) - kLeastNormal;
        u = is_below ? std::bit_cast<uint32_t>(steps) : u + kRebias;
        if (is_last) u = kHasInfinity ? u + ((128u - 16u) << 23) : 0x7fc00000u;
        return std::bit_cast<float>(u | static_cast<uint32_t>(bits & 0x80u) << 24);
    }

private:
    static constexpr int kShift = 23 - mantissa_bits;

    LOCKSTEP_ALWAYS_INLINE static uint8_t rounded(uint32_t x) {
        constexpr uint32_t kTop = std::bit_cast<uint32_t>(kLargest), kRebias = (127u - kBias) << 23;
        constexpr uint32_t kLeastNormal = kRebias + (1u << 23);
        constexpr auto kSteps = std::bit_cast<float>(kLeastNormal + (static_cast<uint32_t>(kShift) << 23));
        const uint32_t sign = x >> 24 & 0x80u, size = x & 0x7fffffffu, u = size < kTop ? size : kTop;
        // The last bit of a sum with kSteps counts steps of the least exponent.
        const uint32_t below = std::bit_cast<uint32_t>(std::bit_cast<float>(u) + kSteps) - std::bit_cast<uint32_t>(kSteps);
        const uint32_t normal = (u - kRebias + (1u << (kShift - 1)) - 1u + (u >> kShift & 1u)) >> kShift;
        uint32_t code = u < kLeastNormal ? below : normal;
        if (size > 0x7f800000u) code = 0x7fu;
        return static_cast<uint8_t>(sign | code);
    }
};
using F8E4M3 = Float8<4, 3>;
using F8E5M2 = Float8<5, 2>;
static_assert(sizeof(F8E4M3) == 1 && sizeof(F8E5M2) == 1);

// 2^(bits - 127), or NaN where all bits are set.
struct E8M0 {
    static constexpr uint8_t kNan = 255;

    uint8_t bits;

    E8M0() = default;
    // What is no power of two is rounded down to one; beyond 2^-127 and 2^127 to those. Of what is not positive and finite: NaN.
    LOCKSTEP_ALWAYS_INLINE constexpr explicit E8M0(double x) : bits(power_of(x)) {}
    LOCKSTEP_ALWAYS_INLINE constexpr explicit E8M0(float x) : E8M0(static_cast<double>(x)) {}
    LOCKSTEP_ALWAYS_INLINE constexpr operator float() const { return power(bits); }
    // By what values are multiplied that get this scale.
    LOCKSTEP_ALWAYS_INLINE constexpr float reciprocal() const { return power(bits == kNan ? 255u : 254u - bits); }

private:
    LOCKSTEP_ALWAYS_INLINE static constexpr float power(uint32_t bits) {
        const uint32_t u = bits == kNan ? 0x7fc00000u : bits << 23;
        return std::bit_cast<float>(bits == 0 ? 0x00400000u : u);
    }
    LOCKSTEP_ALWAYS_INLINE static constexpr uint8_t power_of(double x) {
        const uint64_t u = std::bit_cast<uint64_t>(x);
        if (u == 0 || u >= 0x7ff0000000000000u) return kNan;
        const int64_t power = static_cast<int64_t>(u >> 52) - 1023 + 127;
        return static_cast<uint8_t>(power < 0 ? 0 : power > 254 ? 254 : power);
    }
};
static_assert(sizeof(E8M0) == 1);

// How the scale of a block is made of its largest size. floor: its power of two by that of the type's largest value, so that
// sizes beyond the largest value times the scale become that. rceil: the least power of two with which there are none.
enum class BlockRounding { floor, rceil };

// The scale of a block whose largest size is `amax`, as torchao's to_mx has it. Of amax 0 it is 2^-127, of what is not finite NaN.
[[gnu::always_inline]] constexpr E8M0 block_scale(double amax, float largest, BlockRounding rounding) {
    constexpr uint64_t kMantissa = (uint64_t{1} << 52) - 1;
    const uint64_t u = std::bit_cast<uint64_t>(amax), top = std::bit_cast<uint64_t>(static_cast<double>(largest));
    const bool is_above = rounding == BlockRounding::rceil && (u & kMantissa) > (top & kMantissa);
    const int64_t power = static_cast<int64_t>(u >> 52) - static_cast<int64_t>(top >> 52) + (is_above ? 1 : 0) + 127;
    E8M0 out{};
    out.bits = static_cast<uint8_t>(power < 0 ? 0 : power > 254 ? 254 : power);
    if (u >= 0x7ff0000000000000u) out.bits = E8M0::kNan;
    return out;
}

// The largest value of a float8 type.
constexpr float largest_of(Dtype type) { return type == Dtype::F8E5M2 ? F8E5M2::kLargest : F8E4M3::kLargest; }

// By what values whose largest size is `amax` are multiplied before they are stored, as torchao has it. Of amax 0 it is 4.48e14 in
// E4M3, of infinity 0, of NaN NaN. power_of_two: rounded down to one.
[[gnu::always_inline]] constexpr float scale_of(double amax, float largest, bool power_of_two) {
    constexpr double kLeast = 1e-12;
    const auto scale = static_cast<float>(static_cast<double>(largest) / (amax < kLeast ? kLeast : amax));
    uint32_t u = std::bit_cast<uint32_t>(scale);
    if (!power_of_two || u >= 0x7f800000u) return scale;
    if (u >= 0x00800000u) return std::bit_cast<float>(u & 0x7f800000u);
    while ((u & (u - 1u)) != 0) u &= u - 1u;  // below 2^-126 the highest bit is the power
    return std::bit_cast<float>(u);
}

}  // namespace lockstep
