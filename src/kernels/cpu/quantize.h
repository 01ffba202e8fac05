// Between floats and blocks of int8 (base/quantized.h), in one pass over memory. T: how the floats are stored. Results do not
// depend on the number of threads.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "kernels/cpu/typed.h"

namespace lockstep::kernels::cpu {

// x: [blocks x kQuantizedBlock]; q: [blocks x (kQuantizedBlock + 1)].
template <class T>
using Quantize = void(ThreadPool& pool, int64_t blocks, int least, const T* x, int8_t* q);
extern Typed<Quantize> quantize;
// q: [rows x blocks x (kQuantizedBlock + 1)]; x: [blocks x kQuantizedBlock], the sum over rows in ascending order, in float.
template <class T>
using Dequantize = void(ThreadPool& pool, int64_t rows, int64_t blocks, const int8_t* q, T* x);
extern Typed<Dequantize> dequantize;

}  // namespace lockstep::kernels::cpu
