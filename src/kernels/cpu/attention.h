// Blocked attention with an online softmax, forward and backward, after FlashAttention-2 (Dao, 2023): scores
// stay in scratch, a block of queries at a time, and blocks that the mask hides are skipped.
// q, out, d_out, d_q: [batch, seq, kv_heads, group, head_dim]; k, v, d_k, d_v: [batch, kv_seq, kv_heads, head_dim];
// lse: [batch, seq, kv_heads, group], the natural log of the sum of exp of the scaled scores. All dense, any sizes.
// Which query sees which key: kernels/attention_shape.h.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "kernels/attention_shape.h"
#include "kernels/cpu/typed.h"

namespace lockstep::kernels::cpu {

using kernels::AttentionDropout, kernels::AttentionMask, kernels::AttentionShape;

// What blocks are multiplied as: floats, or bfloat16 by AMX, to which P and dS are rounded too.
enum class AttentionKernel { floats, amx };

// Bytes that `workspace` must hold, 64-byte aligned, for a pool of `threads` threads.
int64_t attention_workspace_bytes(const AttentionShape& shape, int threads, AttentionKernel kernel = AttentionKernel::floats);
int64_t attention_backward_workspace_bytes(const AttentionShape& shape, int threads,
                                           AttentionKernel kernel = AttentionKernel::floats);

// T: how all but lse is stored; scores, softmax and sums are float.
template <class T>
using Attention = void(ThreadPool& pool, const AttentionShape& shape, const AttentionMask& mask, const T* q, const T* k,
                       const T* v, T* out, float* lse, void* workspace);
extern Typed<Attention> attention;
extern const Typed<Attention> attention_amx;  // only of bfloat16, where has_amx() (matmul.h)

// The same for one query a sequence (or few) over many keys: decoding with a cache.
extern Typed<Attention> attention_row;
int64_t attention_row_workspace_bytes(const AttentionShape& shape, int threads);

// d_q, d_k, d_v are replaced. The order of the sums in d_k and d_v depends on the number of threads only where
// batch * kv_heads does not divide among them.
template <class T>
using AttentionBackward = void(ThreadPool& pool, const AttentionShape& shape, const AttentionMask& mask, const T* q, const T* k,
                               const T* v, const float* lse, const T* d_out, T* d_q, T* d_k, T* d_v, void* workspace);
extern Typed<AttentionBackward> attention_backward;
extern const Typed<AttentionBackward> attention_backward_amx;  // as attention_amx

// Blocks of a ring (ops/attention.cpp): k and v are those of one rank, and out, lse and d_q go on behind its first block. Then a
// query with lse = -infinity has out = 0, and one that sees no key keeps what it has.
enum class RingBlock { first, later };

template <class T>
using AttentionBlock = void(ThreadPool& pool, const AttentionShape& shape, const AttentionMask& mask, RingBlock block, const T* q,
                            const T* k, const T* v, float* out, float* lse, void* workspace);  // attention_workspace_bytes
extern Typed<AttentionBlock> attention_block;
extern const Typed<AttentionBlock> attention_block_amx;

// out, lse: of all blocks. d_k and d_v are replaced, and so is d_q by the first block.
template <class T>
using AttentionBlockBackward = void(ThreadPool& pool, const AttentionShape& shape, const AttentionMask& mask, RingBlock block,
                                    const T* q, const T* k, const T* v, const T* out, const float* lse, const T* d_out,
                                    float* d_q, float* d_k, float* d_v, void* workspace);
int64_t attention_block_backward_workspace_bytes(const AttentionShape& shape, int threads,
                                                 AttentionKernel kernel = AttentionKernel::floats);
extern Typed<AttentionBlockBackward> attention_block_backward;
extern const Typed<AttentionBlockBackward> attention_block_backward_amx;

}  // namespace lockstep::kernels::cpu
