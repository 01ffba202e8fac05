// Between floats and blocks of int8 or int4 (base/quantized.h), in one pass over memory. T: how the floats are stored. Results
// do not depend on the number of threads.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "kernels/cpu/typed.h"

namespace lockstep::kernels::cpu {

// How floats become integers.
struct Quantization {
    int64_t bits = 8;        // 8 or 4
    int least = 0;           // exponent of a scale
    bool at_random = false;  // else to nearest
    uint32_t key = 0;        // of rounding at random
};
// x: [elements], whole blocks; q: [quantized_bytes(elements, bits)].
template <class T>
using Quantize = void(ThreadPool& pool, int64_t elements, const Quantization& how, const T* x, int8_t* q);
extern Typed<Quantize> quantize;
// q: [rows x quantized_bytes(elements, bits)]; x: [elements], the sum over rows in ascending order, in float.
template <class T>
using Dequantize = void(ThreadPool& pool, int64_t rows, int64_t elements, int64_t bits, const int8_t* q, T* x);
extern Typed<Dequantize> dequantize;

}  // namespace lockstep::kernels::cpu
