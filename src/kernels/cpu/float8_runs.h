// Elements that have one scale, or one each, between floats and float8 (base/float8.h). Each works on one thread. T: how floats
// are stored; Q: F8E4M3, F8E5M2.
#pragma once

#include <cstdint>

#include "base/float8.h"
#include "kernels/cpu/typed.h"

namespace lockstep::kernels::cpu {

template <template <class, class> class Kernel>
using TypedFloat8 = CopiesOfTwo<Kernel, Stored<float, F8E4M3>, Stored<float, F8E5M2>, Stored<Bf16, F8E4M3>, Stored<Bf16, F8E5M2>,
                                Stored<F16, F8E4M3>, Stored<F16, F8E5M2>>;

// The largest |x|, as the bits of a float: those of a NaN where x has one. Of no elements 0.
template <class T>
using LargestSize = uint32_t(int64_t n, const T* x);
extern Typed<LargestSize> largest_size;

// The same for each of n columns of rows that are `stride` elements apart. most[i]: what was found before, as bits.
template <class T>
using LargestOfColumns = void(int64_t rows, int64_t n, int64_t stride, const T* x, uint32_t* most);
extern Typed<LargestOfColumns> largest_of_columns;
// Of blocks of `block` neighbours.
template <class T>
using LargestOfBlocks = void(int64_t blocks, int64_t block, const T* x, uint32_t* most);
extern Typed<LargestOfBlocks> largest_of_blocks;

// block_scale of each largest size, given as bits, and by what the values of the block are multiplied.
using BlockScales = void(int64_t n, const uint32_t* most, float largest, BlockRounding rounding, E8M0* s, float* by);
extern BlockScales* block_scales;
// The same with scale_of, not rounded to a power of two.
using FloatScales = void(int64_t n, const uint32_t* most, float largest, float* s, float* by);
extern FloatScales* float_scales;

// q = x scale.
template <class T, class Q>
using RunToFloat8 = void(int64_t n, const T* x, float scale, Q* q);
extern TypedFloat8<RunToFloat8> run_to_float8;

// With a scale for each of n columns of rows that are `stride` elements apart, and for each block. next: by how many elements those
// come later that are converted next.
template <class T, class Q>
using ColumnsToFloat8 = void(int64_t rows, int64_t n, int64_t stride, int64_t next, const T* x, const float* scales, Q* q);
extern TypedFloat8<ColumnsToFloat8> columns_to_float8;
template <class T, class Q>
using BlocksToFloat8 = void(int64_t blocks, int64_t block, const T* x, const float* scales, Q* q);
extern TypedFloat8<BlocksToFloat8> blocks_to_float8;

// x = q scale.
template <class T, class Q>
using RunFromFloat8 = void(int64_t n, const Q* q, float scale, T* x);
extern TypedFloat8<RunFromFloat8> run_from_float8;

template <class T, class Q>
using ColumnsFromFloat8 = void(int64_t n, const Q* q, const float* scales, T* x);
extern TypedFloat8<ColumnsFromFloat8> columns_from_float8;

}  // namespace lockstep::kernels::cpu
