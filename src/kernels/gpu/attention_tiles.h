// What kernels of attention share. A block of threads owns some queries, or keys, of a head; it goes through the other side,
// keys or queries, a tile at a time, and leaves out tiles that the mask hides. Which those are follows from bounds of the
// positions and documents of each tile.
#pragma once

#include "base/random.h"
#include "kernels/gpu/attention_workspace.h"
#include "kernels/gpu/mma.h"

namespace lockstep::kernels::gpu {

inline constexpr float kInfinity = __builtin_huge_valf(), kLn2 = 0.693147180559945309f;

// Of the positions and documents of some tokens.
struct alignas(16) Bounds {
    int min_pos, max_pos, min_doc, max_doc;
};
static_assert(sizeof(Bounds) == kBoundsBytes);
// Of each tile of `tile` tokens. pos, doc: [batch, tokens]; bounds: [batch, tiles].
void find_bounds(Stream stream, int64_t batch, int64_t tokens, int tile, const int32_t* pos, const int32_t* doc, Bounds* bounds);

// For all lanes of a warp: those of tokens first .. end - 1.
__device__ __forceinline__ Bounds bounds_of(const int32_t* pos, const int32_t* doc, int first, int end) {
    const int at = first + static_cast<int>(thread()) % kLanes;
    const int own = at < end ? at : first;
    Bounds b{pos[own], pos[own], doc[own], doc[own]};
    for (int i = own; i < end; i += kLanes) {
        b.min_pos = pos[i] < b.min_pos ? pos[i] : b.min_pos, b.max_pos = pos[i] > b.max_pos ? pos[i] : b.max_pos;
        b.min_doc = doc[i] < b.min_doc ? doc[i] : b.min_doc, b.max_doc = doc[i] > b.max_doc ? doc[i] : b.max_doc;
    }
    UNROLL
    for (int mask = kLanes / 2; mask > 0; mask /= 2) {
        const Bounds other{shuffle_xor(b.min_pos, mask), shuffle_xor(b.max_pos, mask), shuffle_xor(b.min_doc, mask),
                           shuffle_xor(b.max_doc, mask)};
        b.min_pos = other.min_pos < b.min_pos ? other.min_pos : b.min_pos;
        b.max_pos = other.max_pos > b.max_pos ? other.max_pos : b.max_pos;
        b.min_doc = other.min_doc < b.min_doc ? other.min_doc : b.min_doc;
        b.max_doc = other.max_doc > b.max_doc ? other.max_doc : b.max_doc;
    }
    return b;
}

// Of positions: how many a query looks back, itself included.
inline unsigned window_of(const AttentionShape& s) {
    return s.window > 0 && s.window < 0xffffffff ? static_cast<unsigned>(s.window) : 0xffffffffu;
}
// Differences of positions are taken without a sign: from the larger one they are right, whatever the two are.
__device__ __forceinline__ unsigned distance(int larger, int smaller) {
    return static_cast<unsigned>(larger) - static_cast<unsigned>(smaller);
}
__device__ __forceinline__ bool sees(int pos, int doc, int kv_pos, int kv_doc, unsigned window) {
    return kv_pos <= pos && kv_doc == doc && distance(pos, kv_pos) < window;
}
__device__ __forceinline__ bool any_sees(const Bounds& query, const Bounds& key, unsigned window) {
    const bool too_old = query.min_pos > key.max_pos && distance(query.min_pos, key.max_pos) >= window;
    return key.min_pos <= query.max_pos && key.min_doc <= query.max_doc && key.max_doc >= query.min_doc && !too_old;
}
__device__ __forceinline__ bool all_see(const Bounds& query, const Bounds& key, unsigned window) {
    const bool one_document = query.min_doc == query.max_doc && key.min_doc == key.max_doc && query.min_doc == key.min_doc;
    return one_document && key.max_pos <= query.min_pos && distance(query.max_pos, key.min_pos) < window;
}

// The tiles of the other side, and what this block owns. Own: queries, or, with own_keys, keys.
template <bool own_keys>
struct Tiles {
    Bounds own;
    const Bounds* bounds;
    int tokens, tile;  // of the other side, and of a tile of it
    unsigned window;

    __device__ __forceinline__ int count() const { return (tokens + tile - 1) / tile; }
    __device__ __forceinline__ bool is_seen(int i) const {
        const Bounds other = bounds[i];
        return own_keys ? any_sees(other, own, window) : any_sees(own, other, window);
    }
    // Whether every query sees every key of a whole tile.
    __device__ __forceinline__ bool is_open(int i) const {
        const Bounds other = bounds[i];
        return (i + 1) * tile <= tokens && (own_keys ? all_see(other, own, window) : all_see(own, other, window));
    }
};

struct Range {
    int begin, end;
};
// For all lanes of a warp: from the first to the last tile that is seen.
template <bool own_keys>
__device__ __forceinline__ Range seen_range(const Tiles<own_keys>& tiles) {
    const int count = tiles.count();
    Range range{count, 0};
    for (int i = static_cast<int>(thread()) % kLanes; i < count; i += kLanes) {
        if (!tiles.is_seen(i)) continue;
        if (i < range.begin) range.begin = i;
        range.end = i + 1;
    }
    UNROLL
    for (int mask = kLanes / 2; mask > 0; mask /= 2) {
        const int begin = shuffle_xor(range.begin, mask), end = shuffle_xor(range.end, mask);
        range.begin = begin < range.begin ? begin : range.begin, range.end = end > range.end ? end : range.end;
    }
    return range;
}

// copy(tile, stage) starts copies of a tile, use(stage, tile, whether it is open) follows when they are there for all threads.
// The next tile is on its way meanwhile. All threads of a block call this; whatever else they have started to copy is there,
// too, and in the end even where no tile is seen.
template <int Stages, bool own_keys, class Copy, class Use>
__device__ __forceinline__ void for_tiles(const Tiles<own_keys>& tiles, const Range& range, Copy copy, Use use) {
    const auto seen_from = [&](int i) {
        while (i < range.end && !tiles.is_seen(i)) ++i;
        return i;
    };
    int tile = seen_from(range.begin), stage = 0;
    if (Stages > 1 && tile < range.end) copy(tile, stage);
    end_group_of_copies();
    while (tile < range.end) {
        const int next = seen_from(tile + 1);
        if (Stages == 1) copy(tile, stage);
        else if (next < range.end) copy(next, 1 - stage);
        end_group_of_copies();
        await_copies<Stages - 1>();
        block_barrier();
        use(stage, tile, tiles.is_open(tile));
        block_barrier();  // the tile has been read
        tile = next;
        if (Stages > 1) stage = 1 - stage;
    }
    await_copies<0>();
    block_barrier();
}

// A row of dropout (base/random.h) of a query: its halves.
__device__ __forceinline__ uint64_t row_of_dropout(const AttentionDropout& drop, int64_t token, int head, int member) {
    const int64_t id = (drop.first_head + head) * drop.members + drop.first_member + member;
    return dropout_row(drop.stream, static_cast<uint32_t>(drop.noise[token]), static_cast<uint64_t>(id));
}
__device__ __forceinline__ bool keeps(const AttentionDropout& drop, int kv_pos, uint64_t row) {
    const auto low = static_cast<uint32_t>(row), high = static_cast<uint32_t>(row >> 32);
    return dropout_bits<uint32_t>(static_cast<uint32_t>(kv_pos), low, high) >= drop.threshold;
}

// Of n keys, or queries, in shared memory: what masks, dropout and gradients ask.
struct Keys {
    int* begin;
    int n;
    static constexpr int bytes(int n) { return 2 * n * 4; }
    __device__ __forceinline__ int& pos(int i) const { return begin[i]; }
    __device__ __forceinline__ int& doc(int i) const { return begin[n + i]; }
};
struct Queries {
    int* begin;
    int n;
    static constexpr int bytes(int n) { return 6 * n * 4; }
    __device__ __forceinline__ int& pos(int i) const { return begin[i]; }
    __device__ __forceinline__ int& doc(int i) const { return begin[n + i]; }
    __device__ __forceinline__ float& lse(int i) const { return reinterpret_cast<float*>(begin)[2 * n + i]; }
    __device__ __forceinline__ float& delta(int i) const { return reinterpret_cast<float*>(begin)[3 * n + i]; }
    __device__ __forceinline__ void set_dropout(int i, uint64_t row) const {
        begin[4 * n + i] = static_cast<int>(row), begin[5 * n + i] = static_cast<int>(row >> 32);
    }
    __device__ __forceinline__ uint64_t dropout(int i) const {
        return static_cast<uint32_t>(begin[4 * n + i]) | static_cast<uint64_t>(static_cast<uint32_t>(begin[5 * n + i])) << 32;
    }
};
__device__ __forceinline__ bool sees(const Queries& queries, int query, const Keys& keys, int key, unsigned window) {
    return sees(queries.pos(query), queries.doc(query), keys.pos(key), keys.doc(key), window);
}

}  // namespace lockstep::kernels::gpu
