// Blocks of integers of 8 or 4 bits that stand for floats (qwZ and qgZ of arXiv 2306.10209; powers of two as scales: OCP
// Microscaling Formats 1.0). A block is q of each element, then a byte with the exponent e of its scale. An element is q 2^e,
// with |q| <= 127 or 7. Byte i of a block of int4 has element i in its low half and element i + 16 in its high half.
//
// e is the least with which every |x| is at most the largest q times 2^e, and q is x 2^-e rounded: to nearest, ties to even; or
// at random, up or down with a mean of x 2^-e. So the largest q is more than half of what it may be, unless e is the type's
// least: quantizing to nearest what was dequantized gives the same bytes. q 2^e is exact in each float type. If an element is
// no finite number, none of the block's is: e is kNotFinite.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

#include "base/dtype.h"
#include "base/random.h"

namespace lockstep {

inline constexpr int8_t kNotFinite = -128;

// Elements of a block. Four bits have 15 values, so that fewer elements must share a scale.
constexpr int64_t quantized_block(int64_t bits) { return bits == 4 ? 32 : bits == 8 ? 256 : 1; }

// More bits are those of a float, which travels with quantized ones as it is.
constexpr bool is_quantized(int64_t bits) { return bits <= 8; }

// Bytes of these elements in blocks. `elements` is a multiple of a block.
constexpr int64_t quantized_bytes(int64_t elements, int64_t bits) {
    return elements * bits / 8 + (is_quantized(bits) ? elements / quantized_block(bits) : 0);
}

// The least exponent of a scale: float16 has no smaller values than 2^-24.
constexpr int least_exponent(Dtype type) {
    if (!is_float(type)) throw std::logic_error("only floats have blocks with a scale");
    return std::max(traits_of(type).least_exponent, -120);
}

// Of a block whose largest size is `most`, which is finite.
inline int exponent_for(double most, int least, int64_t bits) {
    if (most == 0) return least;
    const int b = static_cast<int>(bits) - 1;  // the largest q is 2^b - 1
    int k = 0;
    const double m = std::frexp(most, &k);  // most = m 2^k, 0.5 <= m < 1
    return std::clamp(m <= 1 - std::ldexp(1.0, -b) ? k - b : k - b + 1, least, 126);
}

// x as blocks of int8, each element rounded to nearest, and back. Whole blocks. T: float, double.
template <class T>
void to_int8(std::span<const T> x, std::span<char> q);
template <class T>
void from_int8(std::span<const char> q, std::span<T> x);

// Rounding at random. The bits depend on the step, on the place (`stream`: which tensor; `index`: which element of it) and on
// the value, so that they are the same for every number of threads and in a run that was resumed.
constexpr uint32_t rounding_key(int64_t stream, double steps) {
    return static_cast<uint32_t>(splitmix64(static_cast<uint64_t>(stream) + splitmix64(static_cast<uint64_t>(steps))));
}
// `value`: the bits of the element as a float.
[[gnu::always_inline]] constexpr uint32_t rounding_bits(uint32_t key, uint32_t index, uint32_t value) {
    return mix32(value ^ (index * 0x9e3779b9u + key));
}
// v, or the integer above or below it in size: above with the probability of its fraction.
inline double rounded_at_random(double v, uint32_t bits) {
    const double size = std::abs(v), below = std::floor(size);
    return std::copysign(below + (static_cast<double>(bits >> 8) * 0x1p-24 < size - below ? 1 : 0), v);
}

}  // namespace lockstep
