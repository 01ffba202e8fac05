// Sums, casts, SwiGLU, GELU with its bias and without. Shapes and formulas as in kernels/cpu/elementwise.h and bias.h. Outputs
// may alias inputs of their type. T: how the data is stored.
#pragma once

#include "kernels/gpu/float8.h"
#include "kernels/gpu/types.h"

namespace lockstep::kernels::gpu {

inline constexpr int kMostTerms = 64;

// out = inputs[0] + inputs[1] + .., in this order; 1 <= count <= kMostTerms.
template <class T>
void add(Stream stream, int64_t n, const T* const* inputs, int count, T* out);
// out = the sum of the rows of x [rows, n], in ascending order.
template <class T>
void add_rows(Stream stream, int64_t rows, int64_t n, const T* x, T* out);
template <class T>
void scale(Stream stream, int64_t n, const T* x, float factor, T* out);
// out = x in the other storage type.
template <class From, class To>
void cast(Stream stream, int64_t n, const From* x, To* out);
template <class T>
void accumulate(Stream stream, int64_t n, const T* x, float* out);

template <class T>
void swiglu(Stream stream, int64_t n, const T* gate, const T* up, T* y);
// y: null, or where the result of swiglu goes, too.
template <class T>
void swiglu_backward(Stream stream, int64_t n, const T* dy, const T* gate, const T* up, T* d_gate, T* d_up, T* y);
template <class T>
void swiglu_packed(Stream stream, int64_t rows, int64_t n, const T* both, T* y);
template <class T>
void swiglu_packed_backward(Stream stream, int64_t rows, int64_t n, const T* dy, const T* both, T* d_both, T* y);
// And the largest sizes of y, of d_both, or of both (null: not wanted), as amax() of float8.h raises them. groups: of y [rows, n],
// whose runs are of whole rows; a row of d_both has the group of y's. rows n < 2^31.
template <class T>
void swiglu_packed_amax(Stream stream, int64_t rows, int64_t n, const T* both, T* y, const Grouping& groups, float* amax);
template <class T>
void swiglu_packed_backward_amax(Stream stream, int64_t rows, int64_t n, const T* dy, const T* both, T* d_both, T* y,
                                 const Grouping& groups, float* amax_d, float* amax_y);

// x, y: [rows, n]; b: [n].
template <class T>
void bias(Stream stream, int64_t rows, int64_t n, const T* x, const T* b, T* y);
template <class T>
void bias_gelu(Stream stream, int64_t rows, int64_t n, const T* x, const T* b, T* y);
template <class T>
void gelu(Stream stream, int64_t n, const T* x, T* y);
// dx = dy gelu'(x).
template <class T>
void gelu_backward(Stream stream, int64_t n, const T* dy, const T* x, T* dx);

}  // namespace lockstep::kernels::gpu
