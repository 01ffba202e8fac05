// Which queries of a rank see which keys, if the queries of one document are divided over ranks in the order of mesh/order.h: a
// few pieces, each of which is causal attention or has no mask. Nothing of cuDNN.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace lockstep::kernels::cuda {

struct ContextRanks {
    int64_t count = 1;       // over which the queries are divided
    bool head_tail = false;  // their order, else the plain one
    bool rings = false;      // the keys are a block of as many tokens as the queries; else all keys, in the order of ranks
    int64_t shift = 0;       // in a ring: the block is of the rank so many places before
};

// The queries [first_query, first_query + queries) of each sequence of a rank, and the first `keys` of its keys. Gathered keys
// count in plain order.
struct Piece {
    int64_t first_query, queries, keys;
    bool causal;  // the last query sees all of these keys, and each one before it one key less; else each query sees all
};

inline std::vector<Piece> pieces_of(const ContextRanks& c, int64_t queries, int64_t rank) {
    const int64_t half = queries / 2;
    if (!c.rings && c.head_tail) return {{0, half, (rank + 1) * half, true}, {half, half, (2 * c.count - rank) * half, true}};
    if (!c.rings) return {{0, queries, (rank + 1) * queries, true}};
    if (c.shift == 0) return {{0, queries, queries, true}};
    const bool is_before = c.shift <= rank;  // the block is of an earlier rank
    if (c.head_tail) return {is_before ? Piece{0, queries, half, false} : Piece{half, half, queries, false}};
    if (is_before) return {{0, queries, queries, false}};
    return {};
}

// Of the pieces of all ranks those with the most keys, for each number of queries: the others need no more workspace if they are
// divided in the same way.
inline std::vector<Piece> largest_pieces(const ContextRanks& c, int64_t queries) {
    std::vector<Piece> largest;
    for (int64_t rank = 0; rank < c.count; ++rank) {
        for (const Piece& p : pieces_of(c, queries, rank)) {
            const auto same =
                std::find_if(largest.begin(), largest.end(), [&](const Piece& l) { return l.queries == p.queries; });
            if (same == largest.end()) largest.push_back(p);
            else if (p.keys > same->keys) *same = p;
        }
    }
    return largest;
}

}  // namespace lockstep::kernels::cuda
