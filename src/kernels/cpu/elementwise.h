// Kernels without a product: sums, scale, SwiGLU, rotary positions, embedding. Results do not depend on the number of
// threads.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"

namespace lockstep::kernels::cpu {

// out[i] = inputs[0][i] + inputs[1][i] + .., in this order; out may alias an input. count >= 1.
using Add = void(ThreadPool& pool, int64_t n, const float* const* inputs, int count, float* out);
extern Add* const add;

// out = x * factor; out may alias x.
using Scale = void(ThreadPool& pool, int64_t n, const float* x, float factor, float* out);
extern Scale* const scale;

// out = e^x within 2 units in the last place (0 where the result would be subnormal); out may alias x.
using Exponential = void(ThreadPool& pool, int64_t n, const float* x, float* out);
extern Exponential* const exponential;

// y = gate / (1 + e^-gate) * up. Every output may alias any input.
using SwiGlu = void(ThreadPool& pool, int64_t n, const float* gate, const float* up, float* y);
extern SwiGlu* const swiglu;
using SwiGluBackward = void(ThreadPool& pool, int64_t n, const float* dy, const float* gate, const float* up, float* d_gate,
                            float* d_up);
extern SwiGluBackward* const swiglu_backward;

// Rotary positions in the half-rotated layout of Hugging Face. x, out: [tokens, heads, head_dim], head_dim even and
// h = head_dim / 2; pos: [tokens], up to 2^20 in size; inverse_frequencies: [h]. With angle = pos * frequency:
// out[:h] = x[:h] cos - sign x[h:] sin, out[h:] = x[h:] cos + sign x[:h] sin. sign = -1 is the derivative (and inverse).
// Angles are computed in double. out may alias x.
using Rope = void(ThreadPool& pool, int64_t tokens, int64_t heads, int64_t head_dim, const float* x, const int32_t* pos,
                  const double* inverse_frequencies, float sign, float* out);
extern Rope* const rope;

// The table holds the rows [first_id, first_id + rows) of the vocabulary: [rows, hidden]. out: [tokens, hidden], zero for
// ids outside the shard.
using Embedding = void(ThreadPool& pool, int64_t tokens, int64_t hidden, const int32_t* ids, int64_t first_id, int64_t rows,
                       const float* table, float* out);
extern Embedding* const embedding;

// d_table[id] += d_out[token] in the order of the tokens; replaced (zeroed first) unless accumulate. Threads share out
// the hidden dim.
using EmbeddingBackward = void(ThreadPool& pool, int64_t tokens, int64_t hidden, const int32_t* ids, int64_t first_id,
                               int64_t rows, const float* d_out, float* d_table, bool accumulate);
extern EmbeddingBackward* const embedding_backward;

}  // namespace lockstep::kernels::cpu
