// Kernels without a product: sums, scale, cast, SwiGLU, rotary positions, embedding. Results do not depend on the number of
// threads. T: how the data is stored (typed.h).
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "kernels/cpu/typed.h"
#include "kernels/qkv_shape.h"

namespace lockstep::kernels::cpu {

// out[i] = inputs[0][i] + inputs[1][i] + .., in this order; out may alias an input. count >= 1.
template <class T>
using Add = void(ThreadPool& pool, int64_t n, const T* const* inputs, int count, T* out);
extern Typed<Add> add;

// out = x * factor; out may alias x.
template <class T>
using Scale = void(ThreadPool& pool, int64_t n, const T* x, float factor, T* out);
extern Typed<Scale> scale;

// out = x in the other storage type.
template <class T>
using Narrow = void(ThreadPool& pool, int64_t n, const float* x, T* out);
extern Typed<Narrow> narrow_to;  // of float: a copy
template <class T>
using Widen = void(ThreadPool& pool, int64_t n, const T* x, float* out);
extern Typed<Widen> widen_from;

// out += x.
template <class T>
using Accumulate = void(ThreadPool& pool, int64_t n, const T* x, float* out);
extern Typed<Accumulate> accumulate;

// out = e^x within 2 units in the last place (0 where the result would be subnormal); out may alias x.
using Exponential = void(ThreadPool& pool, int64_t n, const float* x, float* out);
extern Exponential* exponential;

// y = gate / (1 + e^-gate) * up. Every output may alias any input.
template <class T>
using SwiGlu = void(ThreadPool& pool, int64_t n, const T* gate, const T* up, T* y);
extern Typed<SwiGlu> swiglu;
// y: null, or where the result of swiglu goes, too.
template <class T>
using SwiGluBackward = void(ThreadPool& pool, int64_t n, const T* dy, const T* gate, const T* up, T* d_gate, T* d_up, T* y);
extern Typed<SwiGluBackward> swiglu_backward;

// The same where gate and up of a row are one behind the other: both, d_both [rows, 2, n]; y, dy [rows, n]. d_both may alias
// both.
template <class T>
using SwiGluPacked = void(ThreadPool& pool, int64_t rows, int64_t n, const T* both, T* y);
extern Typed<SwiGluPacked> swiglu_packed;
template <class T>
using SwiGluPackedBackward = void(ThreadPool& pool, int64_t rows, int64_t n, const T* dy, const T* both, T* d_both, T* y);
extern Typed<SwiGluPackedBackward> swiglu_packed_backward;

// Rotary positions in the half-rotated layout of Hugging Face. x, out: [tokens, heads, head_dim], head_dim even and
// h = head_dim / 2; pos: [tokens], up to 2^20 in size; inverse_frequencies: [h]. With angle = pos * frequency:
// out[:h] = x[:h] cos - sign x[h:] sin, out[h:] = x[h:] cos + sign x[:h] sin. sign = -1 is the derivative (and inverse).
// Angles are computed in double. out may alias x.
template <class T>
using Rope = void(Range tokens, int64_t heads, int64_t head_dim, const T* x, const int32_t* pos,
                  const double* inverse_frequencies, float sign, T* out);
extern Typed<Rope> rope;

// Queries and keys are rotated on the way, as by rope; pos nullptr: moved as they are, the next two unread.
template <class T>
using SplitQkv = void(Range tokens, const QkvShape& shape, const T* qkv, const int32_t* pos, const double* inverse_frequencies,
                      float sign, T* q, T* k, T* v);
extern Typed<SplitQkv> split_qkv;
template <class T>
using JoinQkv = void(Range tokens, const QkvShape& shape, const T* q, const T* k, const T* v, const int32_t* pos,
                     const double* inverse_frequencies, float sign, T* qkv);
extern Typed<JoinQkv> join_qkv;

// The table holds the rows [first_id, first_id + rows) of the vocabulary: [rows, hidden]. out: [tokens, hidden], zero for
// ids outside the shard. The rows begin the residual stream.
template <class S, class T>
using Embedding = void(ThreadPool& pool, int64_t tokens, int64_t hidden, const int32_t* ids, int64_t first_id, int64_t rows,
                       const T* table, S* out);
extern TypedOnStream<Embedding> embedding;

// d_table[id] += d_out[token] in the order of the tokens; replaced (zeroed first) unless accumulate. Threads share out
// the hidden dim. The sum is float.
template <class T>
using EmbeddingBackward = void(ThreadPool& pool, int64_t tokens, int64_t hidden, const int32_t* ids, int64_t first_id,
                               int64_t rows, const T* d_out, float* d_table, bool accumulate);
extern Typed<EmbeddingBackward> embedding_backward;

}  // namespace lockstep::kernels::cpu
