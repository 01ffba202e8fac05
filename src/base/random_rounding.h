// Rounding to bfloat16 at random: to the value below or above in size, with the mean of what is rounded (stochastic rounding,
// Gupta et al., arXiv 1502.02551). A number that moves by less than half a unit in a step therefore moves on average, where
// rounding to nearest would leave it.
//
// The bits that decide are those of dropout (base/random.h): of the seed, the step, the parameter and its layer, and the
// element's index in the whole parameter. No layout, number of threads or restart changes them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "base/quantized.h"
#include "base/random.h"

namespace lockstep {

// Of a step; `steps` is a whole number.
[[gnu::always_inline]] constexpr uint32_t rounding_noise(uint64_t seed, double steps) {
    return static_cast<uint32_t>(splitmix64(splitmix64(seed) + static_cast<uint64_t>(steps)) >> 32);
}
// Of elements whose index has the same upper half. An element's bits are dropout_bits of its row and of the lower half.
[[gnu::always_inline]] constexpr uint64_t rounding_row(uint32_t noise, uint64_t stream, uint64_t layer, int64_t index) {
    return dropout_row(dropout_stream(stream, layer), noise, static_cast<uint64_t>(index) >> 32);
}

// The bits of a float, rounded: those of a bfloat16 in the upper half. U: uint32_t, or a vector of it in kernels.
template <class U>
[[gnu::always_inline]] constexpr U rounded_to_bf16(U value, U bits) {
    return (value + (~bits >> 16)) & 0xffff0000u;
}

// A double, rounded so. Of what is a float, the same.
inline double rounded_to_bf16(double v, uint32_t bits) {
    if (!std::isfinite(v)) return v;
    int exponent = 0;
    std::frexp(v, &exponent);
    const int unit = std::max(exponent - 8, traits_of(Dtype::BF16).least_exponent);  // eight digits
    return std::ldexp(rounded_at_random(std::ldexp(v, -unit), bits), unit);
}

}  // namespace lockstep
