// Attention with an online softmax, forward and backward, after FlashAttention-2 (Dao, 2023). Shapes and meaning as in
// kernels/cpu/attention.h and attention_shape.h. T: how all but lse is stored; scores, softmax and sums are float. Products are
// made by tensor cores, to which P and dS are rounded, where T has 16 bits, head_dim is a multiple of 8 and rows begin at
// multiples of 16 bytes; else by plain multiply-adds of floats.
#pragma once

#include "kernels/attention_shape.h"
#include "kernels/gpu/types.h"

namespace lockstep::kernels::gpu {

inline constexpr int64_t kMostHeadDim = 256;

// workspace: attention_workspace_bytes (attention_workspace.h), multiples of 16. Where queries are few, as in decoding, several
// blocks share the keys.
template <class T>
void attention(Stream stream, const AttentionShape& shape, const AttentionMask& mask, const T* q, const T* k, const T* v, T* out,
               float* lse, void* workspace);

// d_q, d_k, d_v are replaced. Gradients of queries and those of keys have a kernel each, which computes the probabilities
// again: so that nothing is added atomically.
template <class T>
void attention_backward(Stream stream, const AttentionShape& shape, const AttentionMask& mask, const T* q, const T* k, const T* v,
                        const T* out, const float* lse, const T* d_out, T* d_q, T* d_k, T* d_v, void* workspace);

// A block of the keys (attention_block in ops/attention.cpp): out and lse are of the keys so far, and with `carries` go on from what
// they hold. workspace: attention_block_workspace_bytes.
template <class T>
void attention_block(Stream stream, const AttentionShape& shape, const AttentionMask& mask, const T* q, const T* k, const T* v,
                     bool carries, float* out, float* lse, void* workspace);
// out and lse are of all keys. With `carries`, d_q is added to; workspace as attention_backward's.
template <class T>
void attention_block_backward(Stream stream, const AttentionShape& shape, const AttentionMask& mask, const T* q, const T* k,
                              const T* v, const T* out, const float* lse, const T* d_out, bool carries, float* d_q, float* d_k,
                              float* d_v, void* workspace);

}  // namespace lockstep::kernels::gpu
