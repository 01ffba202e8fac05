// What forward and backward attention share: which block pairs are visible, and packing of blocks.
// Include only from sources compiled once per instruction set.
#pragma once

#include <algorithm>
#include <limits>

#include "kernels/cpu/attention_plan.h"
#include "kernels/cpu/dropout_bits.h"
#include "kernels/cpu/tile.h"

namespace lockstep::kernels::cpu::LOCKSTEP_ISA {

inline constexpr int64_t kBlock = kAttentionBlock;

// Bounds of the positions and documents of some queries or keys.
struct Bounds {
    int32_t min_pos, max_pos, min_doc, max_doc;
};

inline Bounds bounds(const int32_t* pos, const int32_t* doc, int64_t count) {
    Bounds b{pos[0], pos[0], doc[0], doc[0]};
    for (int64_t i = 1; i < count; ++i) {
        b.min_pos = std::min(b.min_pos, pos[i]), b.max_pos = std::max(b.max_pos, pos[i]);
        b.min_doc = std::min(b.min_doc, doc[i]), b.max_doc = std::max(b.max_doc, doc[i]);
    }
    return b;
}

// How many positions a query looks back, itself included.
inline int32_t window_of(const AttentionShape& s) {
    return s.window > 0 ? static_cast<int32_t>(s.window) : std::numeric_limits<int32_t>::max();
}

enum class Visibility { none, some, all };

inline Visibility visibility(const Bounds& query, const Bounds& key, int32_t window) {
    if (key.min_pos > query.max_pos || query.min_pos - key.max_pos >= window || key.min_doc > query.max_doc ||
        key.max_doc < query.min_doc)
        return Visibility::none;
    const bool one_document = query.min_doc == query.max_doc && key.min_doc == key.max_doc && query.min_doc == key.min_doc;
    const bool in_reach = key.max_pos <= query.min_pos && query.max_pos - key.min_pos < window;
    return one_document && in_reach ? Visibility::all : Visibility::some;
}

// Bounds of each block of keys of sequence b; a block that some of its queries may see is packed.
inline void pack_key_blocks(const AttentionShape& s, const AttentionMask& mask, int64_t b, Bounds* key_bounds, const auto& pack) {
    const Bounds queries = bounds(mask.pos + b * s.seq, mask.doc + b * s.seq, s.seq);
    for (int64_t block = 0; block < key_blocks(s); ++block) {
        const int64_t t = block * kBlock, row = b * s.kv_seq + t, count = std::min(kBlock, s.kv_seq - t);
        key_bounds[block] = bounds(mask.kv_pos + row, mask.kv_doc + row, count);
        if (visibility(queries, key_bounds[block], window_of(s)) != Visibility::none) pack(block, row, count);
    }
}

// Calls visit(block, visibility) for each block of keys of which these queries may see some. Returns whether there is one.
inline bool each_visible_block(const AttentionShape& s, const Bounds& queries, const Bounds* key_bounds, const auto& visit) {
    bool any = false;
    for (int64_t j = 0; j < key_blocks(s); ++j) {
        const Visibility seen = visibility(queries, key_bounds[j], window_of(s));
        if (seen == Visibility::none) continue;
        any = true;
        visit(j, seen);
    }
    return any;
}

// The smallest range of the `count` keys that holds all keys that one of these queries may see.
inline Range visible_keys(const Bounds& query, int32_t window, const int32_t* kv_pos, const int32_t* kv_doc, int64_t count) {
    Range range{count, 0};
    for (int64_t t = 0; t < count; ++t) {
        if (kv_pos[t] > query.max_pos || query.min_pos - kv_pos[t] >= window || kv_doc[t] < query.min_doc ||
            kv_doc[t] > query.max_doc)
            continue;
        range.begin = std::min(range.begin, t);
        range.end = t + 1;
    }
    return range.end == 0 ? Range{0, 0} : range;
}

inline Range visible_queries(const Bounds& key, int32_t window, const int32_t* pos, const int32_t* doc, int64_t count) {
    Range range{count, 0};
    for (int64_t s = 0; s < count; ++s) {
        if (pos[s] < key.min_pos || pos[s] - key.max_pos >= window || doc[s] < key.min_doc || doc[s] > key.max_doc) continue;
        range.begin = std::min(range.begin, s);
        range.end = s + 1;
    }
    return range.end == 0 ? Range{0, 0} : range;
}

// from: [count, columns], rows from_stride apart; to: [columns, kBlock], zero in the columns past count.
template <class T>
void pack_transposed(int64_t count, int64_t columns, const T* from, int64_t from_stride, float* to) {
    if (count < kBlock) std::fill(to, to + columns * kBlock, 0.0f);
    for (int64_t i = 0; i < count; i += kLanes)
        transpose_strip(std::min<int64_t>(kLanes, count - i), columns, from + i * from_stride, from_stride, to + i, kBlock);
}

// to: [kBlock, columns], zero in the rows past count.
template <class T>
void pack_rows(int64_t count, int64_t columns, const T* from, int64_t from_stride, float* to) {
    for (int64_t i = 0; i < count; ++i) {
        const T* row = from + i * from_stride;
        for (int64_t c = 0; c < columns; c += kLanes) store(to + i * columns + c, load(row + c, columns - c), columns - c);
    }
    std::fill(to + count * columns, to + kBlock * columns, 0.0f);
}

// The inverse of pack_transposed: from: [columns, kBlock]; to: [count, columns], rows to_stride apart.
template <class T>
void unpack_transposed(int64_t count, int64_t columns, const float* from, T* to, int64_t to_stride) {
    const int64_t whole = columns / kLanes * kLanes;  // the rest goes one by one: a whole vector would reach the next head
    for (int64_t c = 0; c < whole; c += kLanes) transpose_strip(kLanes, count, from + c * kBlock, kBlock, to + c, to_stride);
    for (int64_t c = whole; c < columns; ++c)
        for (int64_t i = 0; i < count; ++i) to[i * to_stride + c] = T(from[c * kBlock + i]);
}

// The same, added to what is there.
inline void add_transposed_back(int64_t count, int64_t columns, const float* from, float* to, int64_t to_stride) {
    alignas(64) float strip[kBlock * kLanes];
    for (int64_t c = 0; c < columns; c += kLanes) {
        const int64_t n = std::min<int64_t>(kLanes, columns - c);
        transpose_strip(n, count, from + c * kBlock, kBlock, strip, kLanes);
        for (int64_t i = 0; i < count; ++i) {
            float* const row = to + i * to_stride + c;
            store(row, load(row, n) + load(strip + i * kLanes), n);
        }
    }
}

inline void scale_in_place(float* x, int64_t n, float factor) {
    for (int64_t i = 0; i < n; ++i) x[i] *= factor;
}

// Copies positions (or documents) of one block and repeats the last into the unused lanes.
inline void pad_to_block(int64_t count, const int32_t* from, int32_t* to) {
    for (int64_t i = 0; i < kBlock; ++i) to[i] = from[std::min(i, count - 1)];
}

// The two halves of each query's row of dropout, for one head; the last is repeated into the unused lanes.
inline void row_keys(const AttentionDropout& drop, const int32_t* noise, int64_t count, int64_t head, int64_t member,
                     int32_t* low, int32_t* high) {
    const int64_t id = (drop.first_head + head) * drop.members + drop.first_member + member;
    for (int64_t i = 0; i < kBlock; ++i) {
        const auto bits = static_cast<uint32_t>(noise[std::min(i, count - 1)]);
        const uint64_t row = dropout_row(drop.stream, bits, static_cast<uint64_t>(id));
        low[i] = static_cast<int32_t>(row), high[i] = static_cast<int32_t>(row >> 32);
    }
}

// Hands out pieces of one thread's scratch.
class Scratch {
public:
    explicit Scratch(float* begin) : next_(begin) {}
    float* floats(int64_t count) {
        float* piece = next_;
        next_ += (count + 15) / 16 * 16;
        return piece;
    }
    template <class T>
    T* of(int64_t count) {
        static_assert(sizeof(T) == 4);
        return reinterpret_cast<T*>(floats(count));
    }
    int32_t* ints(int64_t count) { return of<int32_t>(count); }

private:
    float* next_;
};

}  // namespace lockstep::kernels::cpu::LOCKSTEP_ISA
