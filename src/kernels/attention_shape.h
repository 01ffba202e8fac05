// What an op of attention computes (ops/attention.cpp), for the kernels of any backend. Query s sees key t if
// kv_pos[t] <= pos[s], pos[s] - kv_pos[t] < window and kv_doc[t] == doc[s]. A query that sees nothing has out = 0, lse = -inf.
#pragma once

#include <cstdint>

namespace lockstep::kernels {

struct AttentionShape {
    int64_t batch = 0, seq = 0, kv_seq = 0, kv_heads = 0, group = 0, head_dim = 0;
    float scale = 1;
    int64_t window = 0;  // 0: none
    // Queries, keys and values, and their gradients, are parts of one row a token: [group + 2, kv_heads, head_dim], its queries,
    // its keys, then its values. Else three tensors.
    bool packed = false;

    // Elements from a token's queries, and its keys, to the next token's.
    constexpr int64_t query_stride() const { return (packed ? group + 2 : group) * kv_heads * head_dim; }
    constexpr int64_t key_stride() const { return packed ? query_stride() : kv_heads * head_dim; }
    // Of one row, where keys, and values, begin.
    constexpr int64_t first_key() const { return group * kv_heads * head_dim; }
    constexpr int64_t first_value() const { return first_key() + kv_heads * head_dim; }
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

}  // namespace lockstep::kernels
