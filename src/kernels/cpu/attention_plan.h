// How attention is cut into blocks and tasks, and where each thread's scratch memory lies. The same for all
// instruction sets.
#pragma once

#include "kernels/cpu/attention.h"

namespace lockstep::kernels::cpu {

inline constexpr int64_t kAttentionBlock = 64;  // queries, and keys, of a block; a multiple of every set's tile columns

// A task is one part of the (query block, head of the group) items of one (batch, kv_head).
struct AttentionTasks {
    int64_t heads = 0;  // batch * kv_heads
    int64_t parts = 1;  // tasks per head: more than 1 only where heads do not divide among the threads
    int64_t count() const { return heads * parts; }
};
AttentionTasks attention_tasks(const AttentionShape& shape, int threads);

// Items go to parts in zigzag, 0 1 2 2 1 0 0 1 2 .., because a later query block sees more keys.
bool is_item_of_part(int64_t item, int64_t part, int64_t parts);

int64_t key_blocks(const AttentionShape& shape);
int64_t query_blocks(const AttentionShape& shape);

// Of one block: elements of four bytes of an operand of products, and floats of sums over tokens, [head_dim, kAttentionBlock].
int64_t operand_elements(const AttentionShape& shape, AttentionKernel kernel);
int64_t sum_elements(const AttentionShape& shape, AttentionKernel kernel);

// Where backward has delta from, and of how many blocks of keys it holds scores at once: from P and dP of all keys, or from the
// result of forward, so that each block of keys is done with at once.
enum class Delta { of_keys, of_result };
int64_t score_blocks(const AttentionShape& shape, Delta delta);

// Floats of one thread's scratch, and of one set of key gradient sums (backward).
int64_t attention_scratch_floats(const AttentionShape& shape, AttentionKernel kernel);
int64_t attention_row_scratch_floats(const AttentionShape& shape);  // of each query of a group: scores, sums
int64_t attention_backward_scratch_floats(const AttentionShape& shape, AttentionKernel kernel, Delta delta);
int64_t key_gradient_floats(const AttentionShape& shape, AttentionKernel kernel);

}  // namespace lockstep::kernels::cpu
