// Biases and what follows them: GELU, dropout, the residual sum; and sums of rows, which are gradients of biases. x, y: [rows,
// n]; b: [n]. Arithmetic is in float, T is how activations are stored. y may alias x.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "kernels/cpu/typed.h"
#include "kernels/dropout_mask.h"

namespace lockstep::kernels::cpu {

// y = x + b.
template <class T>
using Bias = void(ThreadPool& pool, int64_t rows, int64_t n, const T* x, const T* b, T* y);
extern Typed<Bias> bias;

// y = gelu(x + b), the tanh form.
template <class T>
using BiasGelu = void(ThreadPool& pool, int64_t rows, int64_t n, const T* x, const T* b, T* y);
extern Typed<BiasGelu> bias_gelu;

// dx may alias dy. db: [n], replaced or added to; each thread sums it over its rows into `workspace`
// (row_sums_workspace_bytes, 64-byte aligned), then the sums are added in the order of the threads.
template <class T>
using BiasGeluBackward = void(ThreadPool& pool, int64_t rows, int64_t n, const T* dy, const T* x, const T* b, T* dx, float* db,
                              bool accumulate_db, void* workspace);
extern Typed<BiasGeluBackward> bias_gelu_backward;
int64_t row_sums_workspace_bytes(int64_t n, int threads);

// y = dropout(x).
template <class T>
using Dropout = void(ThreadPool& pool, int64_t rows, int64_t n, const T* x, const DropoutMask& mask, T* y);
extern Typed<Dropout> dropout;

// y = residual + dropout(x + b); y may alias residual too. All but the bias is stored as the residual stream is.
template <class S, class T>
using BiasDropoutAdd = void(ThreadPool& pool, int64_t rows, int64_t n, const S* x, const T* b, const S* residual,
                            const DropoutMask& mask, S* y);
extern TypedOnStream<BiasDropoutAdd> bias_dropout_add;

// sum: [n], replaced or added to. Threads share out columns: the same bits for any number of them.
template <class T>
using SumRows = void(ThreadPool& pool, int64_t rows, int64_t n, const T* x, float* sum, bool accumulate);
extern Typed<SumRows> sum_rows;

}  // namespace lockstep::kernels::cpu
