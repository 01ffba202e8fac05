// Queries, keys and values of tokens, together and apart (ops/rope.cpp), for the kernels of any backend. Together, a token's
// row holds its queries, its keys, then its values: [tokens, queries + 2 keys, head_dim]. Apart they are q [tokens, queries,
// head_dim], k and v [tokens, keys, head_dim].
#pragma once

#include <cstdint>

namespace lockstep::kernels {

struct QkvShape {
    int64_t tokens = 0, queries = 0, keys = 0, head_dim = 0;  // queries, keys: heads of a token
    int64_t heads() const { return queries + 2 * keys; }
};

}  // namespace lockstep::kernels
