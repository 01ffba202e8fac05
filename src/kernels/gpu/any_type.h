// Kernels for what is too small, or too rare, to have one for each element type: operands of any float types, products and sums
// in double. Their meaning is that of kernels/reference.
#pragma once

#include "base/dtype.h"
#include "kernels/gpu/types.h"

namespace lockstep::kernels::gpu {

// Elements of a type that the kernel asks for.
struct AnyIn {
    const void* data;
    Dtype type;
};
struct AnyOut {
    void* data;
    Dtype type;
    bool adds = false;  // to what is there
};

// Any einsum: for each element of the result, the sum over the inner dims of the product of all operands.
struct Einsum {
    static constexpr int kMostDims = 12, kMostOperands = 4;
    int operands = 0, outer = 0, inner = 0;  // numbers of operands, of dims of the result and of those that are summed over
    int64_t sizes[kMostDims] = {};           // outer, row-major; then inner
    int64_t strides[kMostOperands][kMostDims] = {};
    int64_t results = 1, terms = 1;  // products of the sizes
};
void einsum(Stream stream, const Einsum& shape, const AnyIn (&in)[Einsum::kMostOperands], AnyOut out);

enum class Unary { Valid, Log, Recip, Silu, SiluSlope, Gelu, GeluSlope, GeluErf, GeluErfSlope, RsqrtMean, InverseNorm };
// RsqrtMean: 1 / sqrt(x factor + eps); InverseNorm: 1 / max(sqrt(x), eps).
struct UnaryOf {
    Unary fn;
    double factor = 1, eps = 0;
};
void unary(Stream stream, int64_t n, const UnaryOf& f, AnyIn x, AnyOut y);

inline constexpr int kMostAnyTerms = 16;
struct Terms {
    int count;
    AnyIn of[kMostAnyTerms];
};
void add_any(Stream stream, int64_t n, const Terms& terms, AnyOut y);

// y [count, n] = x [count, n]. Strides: from where a row begins to where the next one does, in elements.
struct AnyRows {
    int64_t count, n, from_stride, to_stride;
};
void copy_rows_of(Stream stream, const AnyRows& rows, AnyIn x, AnyOut y);

// Of rows [rows, n] of the vocabulary from first_id on. pick: y[row] = x[row][id]; unpick: y[row][id] = x[row], else zero.
struct Picked {
    int64_t rows, n, first_id;
};
void pick(Stream stream, const Picked& shape, const int32_t* ids, AnyIn x, AnyOut y);
void unpick(Stream stream, const Picked& shape, const int32_t* ids, AnyIn x, AnyOut y);
// y [rows, n] = exp(x - of_row[row]).
void exp_shifted(Stream stream, int64_t rows, int64_t n, AnyIn x, AnyIn of_row, AnyOut y);

// Adds one, for the host to read while the queue goes on.
void add_one(Stream stream, uint64_t* counter);

// The scalars of a step, in double, where they are (kernels/step_control.h).
void owned(Stream stream, const double* x, double* y);  // without x: zero
void inverse_count(Stream stream, const double* x, AnyOut y);
struct Control {
    double max_norm, beta1, beta2;
};
// loss_scale: none.
void step_control(Stream stream, const Control& how, const double* norm2, const double* loss_sum, AnyIn inverse_count,
                  const double* lr, const double* loss_scale, double* control, double* steps);
void update_loss_scale(Stream stream, double least, const double* scale_before, const double* counted, const double* interval,
                       const double* control, double* scale, double* tracker);

}  // namespace lockstep::kernels::gpu
