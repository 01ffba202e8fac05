// Blocks of int8 that stand for floats (qwZ of arXiv 2306.10209; powers of two as scales: OCP Microscaling Formats 1.0). A block
// of n elements is n + 1 bytes: q of each, then the exponent e of the block's scale. An element is q 2^e with |q| <= 127.
//
// e is the least with which every |x| <= 127 2^e, q is x 2^-e rounded to nearest, ties to even. So the largest q is at least 64
// unless e is the type's least: quantizing what was dequantized gives the same bytes. q 2^e is exact in each float type. If an
// element is no finite number, none of the block's is: e is kNotFinite.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "base/dtype.h"

namespace lockstep {

inline constexpr int64_t kQuantizedBlock = 256;  // elements
inline constexpr int8_t kNotFinite = -128;

// The bytes that so many elements have in blocks. `elements` is a multiple of kQuantizedBlock.
constexpr int64_t quantized_bytes(int64_t elements) { return elements / kQuantizedBlock * (kQuantizedBlock + 1); }

// The least exponent of a scale: float16 has no smaller values than 2^-24.
constexpr int least_exponent(Dtype type) { return type == Dtype::F16 ? -24 : -120; }

// Of a block whose largest size is `most`, which is finite.
inline int exponent_for(double most, int least) {
    if (most == 0) return least;
    int k = 0;
    const double m = std::frexp(most, &k);  // most = m 2^k, 0.5 <= m < 1
    return std::clamp(m <= 127.0 / 128 ? k - 7 : k - 6, least, 126);
}

}  // namespace lockstep
