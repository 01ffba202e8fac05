// Blocked attention with an online softmax, forward and backward, after FlashAttention-2 (Dao, 2023): scores
// stay in scratch, a block of queries at a time, and blocks that the mask hides are skipped.
// q, out, d_out, d_q: [batch, seq, kv_heads, group, head_dim]; k, v, d_k, d_v: [batch, kv_seq, kv_heads, head_dim];
// lse: [batch, seq, kv_heads, group], the natural log of the sum of exp of the scaled scores. All dense, any sizes.
// Query s sees key t if kv_pos[t] <= pos[s], pos[s] - kv_pos[t] < window and kv_doc[t] == doc[s]. A query that sees nothing has
// out = 0, lse = -inf.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "kernels/cpu/typed.h"

namespace lockstep::kernels::cpu {

struct AttentionShape {
    int64_t batch = 0, seq = 0, kv_seq = 0, kv_heads = 0, group = 0, head_dim = 0;
    float scale = 1;
    int64_t window = 0;  // 0: none
};

// What is dropped of the probabilities (base/random.h): those of query s and head h whose key's position p has
// dropout_bits(dropout_row(stream, noise[s], h), p) below the threshold. The others are multiplied by scale.
struct AttentionDropout {
    const int32_t* noise = nullptr;  // [batch, seq]; none: nothing is dropped
    uint64_t stream = 0;
    uint32_t threshold = 0;
    float scale = 1;
    int64_t first_head = 0, first_member = 0;  // this rank's first kv_head and member of a group, counted over all ranks
    int64_t members = 1;                       // of a group, over all ranks
};

struct AttentionMask {
    const int32_t* pos;     // [batch, seq]
    const int32_t* kv_pos;  // [batch, kv_seq]
    const int32_t* doc;     // [batch, seq]
    const int32_t* kv_doc;  // [batch, kv_seq]
    AttentionDropout drop{};
};

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
extern const Typed<Attention> attention_amx;  // of bfloat16 alone, where has_amx() (matmul.h)

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

}  // namespace lockstep::kernels::cpu
