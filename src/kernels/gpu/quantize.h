// Between floats and blocks of int8 or int4 (base/quantized.h). T: how the floats are stored.
#pragma once

#include "kernels/gpu/types.h"

namespace lockstep::kernels::gpu {

struct Quantization {
    int bits = 8;                   // 8 or 4
    int least = 0;                  // exponent of a scale
    int64_t stream = 0;             // of rounding at random
    const double* steps = nullptr;  // of rounding at random, on the device; nullptr: to nearest
};
// x: [elements], whole blocks; q: [quantized_bytes(elements, bits)].
template <class T>
void quantize(Stream stream, int64_t elements, const Quantization& how, const T* x, int8_t* q);
// q: [rows x quantized_bytes(elements, bits)]; x: [elements], the sum over rows in ascending order, in float.
template <class T>
void dequantize(Stream stream, int64_t rows, int64_t elements, int bits, const int8_t* q, T* x);

}  // namespace lockstep::kernels::gpu
