// What kernels of attention get, and which queries or keys a block of threads owns.
#pragma once

#include "kernels/gpu/attention_tiles.h"

namespace lockstep::kernels::gpu {

template <class T>
struct Forward {
    AttentionShape shape;
    AttentionMask mask;
    unsigned window;
    Bounds* bounds;  // of tiles of keys
    int parts;       // of the keys, each of them in other blocks
    const T *q, *k, *v;
    T* out;
    float* lse;
    // Results in float, instead of out: of parts, behind each other, where there are several; lse then is of parts, too.
    float* outs = nullptr;
};
// R: how gradients are stored. They are added to d_q where `adds`.
template <class T, class R = T>
struct Backward {
    AttentionShape shape;
    AttentionMask mask;
    unsigned window;
    Bounds *query_bounds, *key_bounds;
    const T *q, *k, *v, *d_out;
    const float *lse, *delta;
    R *d_q, *d_k, *d_v;
    bool adds = false;
};

// By multiply-adds of floats. wide: whether rows can be read 16 bytes at a time.
template <class T>
void start_plain(Stream stream, const Forward<T>& a, bool wide);
template <class T, class R>
void start_plain(Stream stream, const Backward<T, R>& a, bool wide);

// Of a tensor, the rows of a sequence and a head: where the first one begins, and the distance to the next one.
struct Rows {
    int64_t first, stride;
    int count;
    __device__ __forceinline__ int64_t operator()(int row) const { return first + row * stride; }
};
__device__ __forceinline__ Rows key_rows(const AttentionShape& s, int batch, int head) {
    return {batch * s.kv_seq * s.key_stride() + head * s.head_dim, s.key_stride(), static_cast<int>(s.kv_seq)};
}
__device__ __forceinline__ Rows query_rows(const AttentionShape& s, int batch, int head, int member) {
    return {batch * s.seq * s.query_stride() + (head * s.group + member) * s.head_dim, s.query_stride(), static_cast<int>(s.seq)};
}
// Of attention's result and its gradient.
__device__ __forceinline__ Rows result_rows(const AttentionShape& s, int batch, int head, int member) {
    return {((batch * s.seq * s.kv_heads + head) * s.group + member) * s.head_dim, s.kv_heads * s.group * s.head_dim,
            static_cast<int>(s.seq)};
}

// Starts copies of what is to be known of keys, and of queries, from `first` on.
template <class A>
__device__ __forceinline__ void copy_tokens(const A& a, int batch, int, int, int first, const Keys& to) {
    const int count = static_cast<int>(a.shape.kv_seq);
    for (int i = static_cast<int>(thread()); i < to.n; i += static_cast<int>(threads())) {
        const bool exists = first + i < count;
        const int64_t key = batch * a.shape.kv_seq + (exists ? first + i : 0);
        start_copy<4>(&to.pos(i), a.mask.kv_pos + key, exists), start_copy<4>(&to.doc(i), a.mask.kv_doc + key, exists);
    }
}
template <class T, class R>
__device__ __forceinline__ void copy_tokens(const Backward<T, R>& a, int batch, int head, int member, int first,
                                            const Queries& to) {
    const AttentionShape& s = a.shape;
    for (int i = static_cast<int>(thread()); i < to.n; i += static_cast<int>(threads())) {
        const bool exists = first + i < static_cast<int>(s.seq);
        const int64_t token = batch * s.seq + (exists ? first + i : 0), row = (token * s.kv_heads + head) * s.group + member;
        start_copy<4>(&to.pos(i), a.mask.pos + token, exists), start_copy<4>(&to.doc(i), a.mask.doc + token, exists);
        start_copy<4>(&to.lse(i), a.lse + row, exists), start_copy<4>(&to.delta(i), a.delta + row, exists);
        if (a.mask.drop.noise) to.set_dropout(i, row_of_dropout(a.mask.drop, token, head, member));
    }
}

// Of the forward pass: `size` queries, row r being member r % group of token r / group, and a part of the keys. Blocks of one
// head are side by side, those that have most to do under a causal mask first.
struct ForwardBlock {
    int64_t heads;
    int size, first, rows, group, batch, head, part;

    template <class T>
    __device__ __forceinline__ ForwardBlock(const Forward<T>& a, int size)
        : heads(a.shape.kv_heads),
          size(size),
          rows(static_cast<int>(a.shape.seq * a.shape.group)),
          group(static_cast<int>(a.shape.group)) {
        const int in_head = (rows + size - 1) / size;
        int64_t i = block();
        first = (in_head - 1 - static_cast<int>(i % in_head)) * size, i /= in_head;
        part = static_cast<int>(i % a.parts), i /= a.parts;
        head = static_cast<int>(i % heads), batch = static_cast<int>(i / heads);
    }
    template <class T>
    static int64_t blocks(const Forward<T>& a, int64_t size) {
        return tiles_of(a.shape.seq * a.shape.group, size) * a.parts * a.shape.kv_heads * a.shape.batch;
    }
    __device__ __forceinline__ int64_t token(int row) const { return static_cast<int64_t>(batch) * (rows / group) + row / group; }
    // In lse, and, times head_dim, in out.
    __device__ __forceinline__ int64_t place(int row) const { return (token(row) * heads + head) * group + row % group; }
    // In q.
    __device__ __forceinline__ int64_t query(const AttentionShape& s, int row) const {
        return token(row) * s.query_stride() + (head * group + row % group) * s.head_dim;
    }

    template <class T>
    __device__ __forceinline__ void note_tokens(const Forward<T>& a, const Queries& to) const {
        for (int i = static_cast<int>(thread()); i < size; i += static_cast<int>(threads())) {
            const int row = first + i < rows ? first + i : rows - 1;
            to.pos(i) = a.mask.pos[token(row)], to.doc(i) = a.mask.doc[token(row)];
            if (a.mask.drop.noise) to.set_dropout(i, row_of_dropout(a.mask.drop, token(row), head, row % group));
        }
    }
    template <class T>
    __device__ __forceinline__ Tiles<false> tiles(const Forward<T>& a, int tile) const {
        const int kv_seq = static_cast<int>(a.shape.kv_seq), last = (first + size < rows ? first + size : rows) - 1;
        return {bounds_of(a.mask.pos + token(0), a.mask.doc + token(0), first / group, last / group + 1),
                a.bounds + batch * tiles_of(kv_seq, tile), kv_seq, tile, a.window};
    }
    // Of what is seen, this part.
    template <class T>
    __device__ __forceinline__ Range range(const Forward<T>& a, const Tiles<false>& tiles) const {
        const Range all = seen_range(tiles);
        if (a.parts == 1 || all.begin >= all.end) return all;
        const int64_t count = all.end - all.begin;
        return {all.begin + static_cast<int>(count * part / a.parts), all.begin + static_cast<int>(count * (part + 1) / a.parts)};
    }
};

// Of the backward pass: `size` keys of a head, or queries of a member of its group. The other side are queries of each member,
// or keys. Blocks are placed as above.
template <bool own_keys>
struct BackwardBlock {
    int first, batch, head, member, last_member;
    Rows rows, second_rows;  // of keys, or queries; of values, or of gradients of results

    template <class T, class R>
    __device__ __forceinline__ BackwardBlock(const Backward<T, R>& a, int size) {
        const AttentionShape& s = a.shape;
        const int group = static_cast<int>(s.group), count = static_cast<int>(own_keys ? s.kv_seq : s.seq),
                  in_head = (count + size - 1) / size;
        int64_t i = block();
        const int place = static_cast<int>(i % in_head);
        first = (own_keys ? place : in_head - 1 - place) * size, i /= in_head;
        member = own_keys ? 0 : static_cast<int>(i % group), last_member = own_keys ? group - 1 : member;
        if (!own_keys) i /= group;
        head = static_cast<int>(i % s.kv_heads), batch = static_cast<int>(i / s.kv_heads);
        rows = own_keys ? key_rows(s, batch, head) : query_rows(s, batch, head, member);
        second_rows = own_keys ? rows : result_rows(s, batch, head, member);
    }
    static int64_t blocks(const AttentionShape& s, int64_t size) {
        return s.batch * s.kv_heads * (own_keys ? tiles_of(s.kv_seq, size) : s.group * tiles_of(s.seq, size));
    }
    __device__ __forceinline__ Rows other_rows(const AttentionShape& s, int of_member) const {
        return own_keys ? query_rows(s, batch, head, of_member) : key_rows(s, batch, head);
    }
    __device__ __forceinline__ Rows second_other_rows(const AttentionShape& s, int of_member) const {
        return own_keys ? result_rows(s, batch, head, of_member) : key_rows(s, batch, head);
    }
    template <class T, class R>
    __device__ __forceinline__ Tiles<own_keys> tiles(const Backward<T, R>& a, int size, int tile) const {
        const int others = static_cast<int>(own_keys ? a.shape.seq : a.shape.kv_seq),
                  end = first + size < rows.count ? first + size : rows.count;
        const int64_t before = static_cast<int64_t>(batch) * rows.count;
        return {bounds_of((own_keys ? a.mask.kv_pos : a.mask.pos) + before, (own_keys ? a.mask.kv_doc : a.mask.doc) + before,
                          first, end),
                (own_keys ? a.query_bounds : a.key_bounds) + batch * tiles_of(others, tile), others, tile, a.window};
    }
};
template <bool own_keys, class T, class R>
void find_other_bounds(Stream stream, const Backward<T, R>& a, int tile) {
    const AttentionShape& s = a.shape;
    if (own_keys) find_bounds(stream, s.batch, s.seq, tile, a.mask.pos, a.mask.doc, a.query_bounds);
    else find_bounds(stream, s.batch, s.kv_seq, tile, a.mask.kv_pos, a.mask.kv_doc, a.key_bounds);
}

// f(queries, query, keys, key), for an own row and one of the other side.
template <class F>
__device__ __forceinline__ auto with_pair(const Queries& own, int row, const Keys& other, int other_row, F f) {
    return f(own, row, other, other_row);
}
template <class F>
__device__ __forceinline__ auto with_pair(const Keys& own, int row, const Queries& other, int other_row, F f) {
    return f(other, other_row, own, row);
}

}  // namespace lockstep::kernels::gpu
