// Elements that have one scale, between floats and float8 (base/float8.h), and rows of a product that get their scales. Each works
// on one thread. T: how floats are stored; Q: F8E4M3, F8E5M2.
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

// q = x scale.
template <class T, class Q>
using RunToFloat8 = void(int64_t n, const T* x, float scale, Q* q);
extern TypedFloat8<RunToFloat8> run_to_float8;

// x = q scale.
template <class T, class Q>
using RunFromFloat8 = void(int64_t n, const Q* q, float scale, T* x);
extern TypedFloat8<RunFromFloat8> run_from_float8;

// x = q, which is exact.
template <class Q>
using CodesToBf16 = void(int64_t n, const Q* q, Bf16* x);
using TypedCodesToBf16 = CopiesOfOne<CodesToBf16, F8E4M3, F8E5M2>;
extern TypedCodesToBf16 codes_to_bf16;

// out = sums of_row of_columns, or before + the same; before, where given, may be out.
template <class T>
using ScaleSums = void(int64_t n, const float* sums, float of_row, const float* of_columns, const float* before, T* out);
extern Typed<ScaleSums> scale_sums;

}  // namespace lockstep::kernels::cpu
