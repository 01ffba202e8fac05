// Blocked attention with an online softmax, forward and backward, after FlashAttention-2 (Dao, 2023): the scores never
// reach memory, and blocks that the mask hides are skipped.
// q, out, d_out, d_q: [batch, seq, kv_heads, group, head_dim]; k, v, d_k, d_v: [batch, kv_seq, kv_heads, head_dim];
// lse: [batch, seq, kv_heads, group], the natural log of the sum of exp of the scaled scores. All dense, any sizes.
// Query s sees key t if kv_pos[t] <= pos[s] and kv_doc[t] == doc[s]. A query that sees nothing has out = 0, lse = -inf.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"

namespace lockstep::kernels::cpu {

struct AttentionShape {
    int64_t batch = 0, seq = 0, kv_seq = 0, kv_heads = 0, group = 0, head_dim = 0;
    float scale = 1;
};

struct AttentionMask {
    const int32_t* pos;     // [batch, seq]
    const int32_t* kv_pos;  // [batch, kv_seq]
    const int32_t* doc;     // [batch, seq]
    const int32_t* kv_doc;  // [batch, kv_seq]
};

// Bytes that `workspace` must hold, 64-byte aligned, for a pool of so many threads.
int64_t attention_workspace_bytes(const AttentionShape& shape, int threads);
int64_t attention_backward_workspace_bytes(const AttentionShape& shape, int threads);

using Attention = void(ThreadPool& pool, const AttentionShape& shape, const AttentionMask& mask, const float* q, const float* k,
                       const float* v, float* out, float* lse, void* workspace);
extern Attention* const attention;

// d_q, d_k, d_v are replaced. The order of the sums in d_k and d_v depends on the number of threads only where
// batch * kv_heads does not divide among them.
using AttentionBackward = void(ThreadPool& pool, const AttentionShape& shape, const AttentionMask& mask, const float* q,
                               const float* k, const float* v, const float* out, const float* lse, const float* d_out, float* d_q,
                               float* d_k, float* d_v, void* workspace);
extern AttentionBackward* const attention_backward;

}  // namespace lockstep::kernels::cpu
