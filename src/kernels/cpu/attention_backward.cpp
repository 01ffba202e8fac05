// Backward attention. Lanes are keys: P and dS are held as [queries, keys], so that they are operands of the products for
// d_k and d_v; one transposed copy of dS serves d_q. Sums stay in scratch as [head_dim, block]. Compiled once per
// instruction set.
#include <limits>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/attention_blocks.h"

namespace lockstep::kernels::cpu::LOCKSTEP_ISA {

extern const Typed<AttentionBackward> attention_backward;

namespace {

template <class T>
struct Work {
    const AttentionShape& shape;
    const AttentionMask& mask;
    const T *q, *k, *v, *out;
    const float* lse;
    const T* d_out;
    T *d_q, *d_k, *d_v;
};

struct BackwardScratch {
    BackwardScratch(const AttentionShape& s, float* begin) {
        Scratch scratch(begin);
        const int64_t block = kBlock * s.head_dim, all = key_blocks(s) * block;
        keys_transposed = scratch.floats(all);
        keys = scratch.floats(all);
        values_transposed = scratch.floats(all);
        query_transposed = scratch.floats(block);
        query = scratch.floats(block);
        d_out_transposed = scratch.floats(block);
        d_out = scratch.floats(block);
        d_query = scratch.floats(block);
        p = scratch.floats(kBlock * kBlock);
        ds = scratch.floats(kBlock * kBlock);
        ds_transposed = scratch.floats(kBlock * kBlock);
        lse = scratch.floats(kBlock);
        delta = scratch.floats(kBlock);
        pos = scratch.ints(kBlock);
        doc = scratch.ints(kBlock);
        kv_pos = scratch.ints(kBlock);
        kv_doc = scratch.ints(kBlock);
        low = scratch.ints(kBlock);
        high = scratch.ints(kBlock);
        key_bounds = reinterpret_cast<Bounds*>(scratch.ints(4 * key_blocks(s)));
    }
    float *keys_transposed, *values_transposed;  // [key blocks, head_dim, kBlock]
    float* keys;                                 // [key blocks, kBlock, head_dim]
    float *query_transposed, *d_out_transposed;  // [head_dim, kBlock]; queries are scaled
    float *query, *d_out;                        // [kBlock, head_dim]; queries are scaled
    float* d_query;                              // [head_dim, kBlock]
    float *p, *ds;                               // [queries, keys]
    float* ds_transposed;                        // [keys, queries]
    float *lse, *delta;                          // [queries]; delta = sum over head_dim of d_out * out
    int32_t *pos, *doc, *kv_pos, *kv_doc;        // of the current blocks
    int32_t *low, *high;                         // [queries], of dropout
    Bounds* key_bounds;
};

// Sums of one (batch, kv_head): d_k then d_v, each [key blocks, head_dim, kBlock].
struct KeyGradients {
    KeyGradients(const AttentionShape& s, float* begin) : d_keys(begin), d_values(begin + key_blocks(s) * kBlock * s.head_dim) {}
    float *d_keys, *d_values;
};

template <class T>
void pack_keys(const Work<T>& w, int64_t b, int64_t head, BackwardScratch& scratch) {
    const AttentionShape& s = w.shape;
    const int64_t d = s.head_dim, stride = s.kv_heads * d;
    for (int64_t block = 0; block < key_blocks(s); ++block) {
        const int64_t t = block * kBlock, count = std::min(kBlock, s.kv_seq - t), row = b * s.kv_seq + t;
        const int64_t from = row * stride + head * d;
        pack_transposed(count, d, w.k + from, stride, scratch.keys_transposed + t * d);
        pack_rows(count, d, w.k + from, stride, scratch.keys + t * d);
        pack_transposed(count, d, w.v + from, stride, scratch.values_transposed + t * d);
        scratch.key_bounds[block] = bounds(w.mask.kv_pos + row, w.mask.kv_doc + row, count);
    }
}

// On entry p holds scaled scores and ds holds d_out * V^T, for one tile column of keys; on exit P and dS.
template <bool Masked, bool Drops>
void softmax_backward(BackwardScratch& scratch, int64_t column, Range queries, int32_t window, const AttentionDropout& drop) {
    for (int half = 0; half < 2; ++half) {
        const int64_t lane = column + half * kLanes;
        const IntVec kv_pos = load(scratch.kv_pos + lane), kv_doc = load(scratch.kv_doc + lane);
        for (int64_t s = queries.begin; s < queries.end; ++s) {
            float *p = scratch.p + s * kBlock + lane, *ds = scratch.ds + s * kBlock + lane;
            Vec probability = exp(load(p) - scratch.lse[s]);
            if constexpr (Masked) {
                const IntVec visible =
                    (kv_pos <= scratch.pos[s]) & (scratch.pos[s] - kv_pos < window) & (kv_doc == scratch.doc[s]);
                probability = visible ? probability : Vec{};
            }
            Vec kept = splat(1.0f);
            if constexpr (Drops) {
                const auto low = static_cast<uint32_t>(scratch.low[s]), high = static_cast<uint32_t>(scratch.high[s]);
                const BitVec bits = dropout_bits<BitVec>(reinterpret_cast<BitVec>(kv_pos), low, high);
                kept = keep_where(bits, drop.threshold, splat(drop.scale));
            }
            store(p, probability * kept);
            store(ds, probability * (load(ds) * kept - scratch.delta[s]));
        }
    }
}

void transpose_ds(BackwardScratch& scratch) {
    for (int64_t s = 0; s < kBlock; s += kLanes)
        transpose_strip(kLanes, kBlock, scratch.ds + s * kBlock, kBlock, scratch.ds_transposed + s, kBlock);
}

template <class T>
void block_pair(const Work<T>& w, int64_t b, int64_t block, Visibility seen, int64_t query_count, BackwardScratch& scratch,
                const KeyGradients& sums) {
    const int64_t d = w.shape.head_dim, t = block * kBlock, count = std::min(kBlock, w.shape.kv_seq - t);
    const int32_t window = window_of(w.shape);
    pad_to_block(count, w.mask.kv_pos + b * w.shape.kv_seq + t, scratch.kv_pos);
    pad_to_block(count, w.mask.kv_doc + b * w.shape.kv_seq + t, scratch.kv_doc);
    if (seen == Visibility::some) std::fill(scratch.ds, scratch.ds + kBlock * kBlock, 0.0f);  // parts of it are not computed
    for (int64_t column = 0; column < count; column += kTileColumns) {
        Range queries{0, query_count};
        if (seen == Visibility::some)
            queries = visible_queries(bounds(scratch.kv_pos + column, scratch.kv_doc + column, kTileColumns), window, scratch.pos,
                                      scratch.doc, query_count);
        if (queries.count() == 0) continue;
        float* p = scratch.p + queries.begin * kBlock + column;
        float* ds = scratch.ds + queries.begin * kBlock + column;
        block_product(queries.count(), kTileColumns, d, scratch.query_transposed + queries.begin, kBlock,
                      scratch.keys_transposed + t * d + column, kBlock, p, kBlock, Write::replace);
        block_product(queries.count(), kTileColumns, d, scratch.d_out_transposed + queries.begin, kBlock,
                      scratch.values_transposed + t * d + column, kBlock, ds, kBlock, Write::replace);
        const auto softmax = w.mask.drop.noise
                                 ? (seen == Visibility::some ? softmax_backward<true, true> : softmax_backward<false, true>)
                                 : (seen == Visibility::some ? softmax_backward<true, false> : softmax_backward<false, false>);
        softmax(scratch, column, queries, window, w.mask.drop);
        block_product(d, kTileColumns, queries.count(), scratch.d_out + queries.begin * d, d, p, kBlock,
                      sums.d_values + t * d + column, kBlock, Write::add);
        block_product(d, kTileColumns, queries.count(), scratch.query + queries.begin * d, d, ds, kBlock,
                      sums.d_keys + t * d + column, kBlock, Write::add);
    }
    transpose_ds(scratch);
    for (int64_t column = 0; column < query_count; column += kTileColumns) {
        Range keys{0, count};
        if (seen == Visibility::some)
            keys = visible_keys(bounds(scratch.pos + column, scratch.doc + column, kTileColumns), window, scratch.kv_pos,
                                scratch.kv_doc, count);
        if (keys.count() == 0) continue;
        block_product(d, kTileColumns, keys.count(), scratch.keys + (t + keys.begin) * d, d,
                      scratch.ds_transposed + keys.begin * kBlock + column, kBlock, scratch.d_query + column, kBlock, Write::add);
    }
}

template <class T>
void load_query_block(const Work<T>& w, int64_t b, int64_t first, int64_t row, int64_t count, BackwardScratch& scratch) {
    const AttentionShape& s = w.shape;
    const int64_t d = s.head_dim, heads = s.kv_heads * s.group;
    pack_transposed(count, d, w.q + row * d, heads * d, scratch.query_transposed);
    pack_rows(count, d, w.q + row * d, heads * d, scratch.query);
    scale_in_place(scratch.query_transposed, d * kBlock, s.scale);
    scale_in_place(scratch.query, d * kBlock, s.scale);
    pack_transposed(count, d, w.d_out + row * d, heads * d, scratch.d_out_transposed);
    pack_rows(count, d, w.d_out + row * d, heads * d, scratch.d_out);
    pad_to_block(count, w.mask.pos + b * s.seq + first, scratch.pos);
    pad_to_block(count, w.mask.doc + b * s.seq + first, scratch.doc);
    for (int64_t i = 0; i < count; ++i) {
        const int64_t at = row + i * heads;
        Vec total{};
        for (int64_t c = 0; c < d; c += kLanes) total += load(w.out + at * d + c, d - c) * load(w.d_out + at * d + c, d - c);
        scratch.delta[i] = sum(total);
        scratch.lse[i] = w.lse[at];
    }
    std::fill(scratch.d_query, scratch.d_query + d * kBlock, 0.0f);
}

template <class T>
void query_block(const Work<T>& w, int64_t b, int64_t head, int64_t member, int64_t block, BackwardScratch& scratch,
                 const KeyGradients& sums) {
    const AttentionShape& s = w.shape;
    const int64_t d = s.head_dim, first = block * kBlock, count = std::min(kBlock, s.seq - first);
    const int64_t heads = s.kv_heads * s.group;
    const int64_t row = (b * s.seq + first) * heads + head * s.group + member;  // [batch, seq, kv_heads, group]
    load_query_block(w, b, first, row, count, scratch);
    if (w.mask.drop.noise)
        row_keys(w.mask.drop, w.mask.drop.noise + b * s.seq + first, count, head, member, scratch.low, scratch.high);
    const Bounds queries = bounds(scratch.pos, scratch.doc, count);
    for (int64_t j = 0; j < key_blocks(s); ++j) {
        const Visibility seen = visibility(queries, scratch.key_bounds[j], window_of(s));
        if (seen != Visibility::none) block_pair(w, b, j, seen, count, scratch, sums);
    }
    scale_in_place(scratch.d_query, d * kBlock, s.scale);
    unpack_transposed(count, d, scratch.d_query, w.d_q + row * d, heads * d);
}

template <class T>
void write_key_gradients(const Work<T>& w, int64_t b, int64_t head, const KeyGradients& sums) {
    const AttentionShape& s = w.shape;
    const int64_t d = s.head_dim;
    for (int64_t t = 0; t < s.kv_seq; t += kBlock) {
        const int64_t count = std::min(kBlock, s.kv_seq - t), to = ((b * s.kv_seq + t) * s.kv_heads + head) * d;
        unpack_transposed(count, d, sums.d_keys + t * d, w.d_k + to, s.kv_heads * d);
        unpack_transposed(count, d, sums.d_values + t * d, w.d_v + to, s.kv_heads * d);
    }
}

template <class T>
void attention_backward_of(ThreadPool& pool, const AttentionShape& shape, const AttentionMask& mask, const T* q, const T* k,
                           const T* v, const T* out, const float* lse, const T* d_out, T* d_q, T* d_k, T* d_v, void* workspace) {
    const Work<T> work{shape, mask, q, k, v, out, lse, d_out, d_q, d_k, d_v};
    const AttentionTasks tasks = attention_tasks(shape, pool.threads());
    const int64_t scratch_floats = attention_backward_scratch_floats(shape), sum_floats = key_gradient_floats(shape);
    float* const all_sums = static_cast<float*>(workspace) + pool.threads() * scratch_floats;
    pool.parallel([&](int thread, int threads) {
        BackwardScratch scratch(shape, static_cast<float*>(workspace) + thread * scratch_floats);
        const Range mine = split(tasks.count(), threads, thread);
        int64_t packed = -1;
        for (int64_t task = mine.begin; task < mine.end; ++task) {
            const int64_t pair = task / tasks.parts, b = pair / shape.kv_heads, head = pair % shape.kv_heads;
            if (pair != packed) pack_keys(work, b, head, scratch);
            packed = pair;
            float* const begin = all_sums + (tasks.parts == 1 ? thread : task) * sum_floats;
            std::fill(begin, begin + sum_floats, 0.0f);
            const KeyGradients sums(shape, begin);
            for (int64_t item = 0; item < shape.group * query_blocks(shape); ++item)
                if (is_item_of_part(item, task % tasks.parts, tasks.parts))
                    query_block(work, b, head, item % shape.group, item / shape.group, scratch, sums);
            if (tasks.parts == 1) write_key_gradients(work, b, head, sums);
        }
    });
    if (tasks.parts == 1) return;
    pool.parallel([&](int thread, int threads) {
        const Range mine = split(tasks.heads, threads, thread);
        for (int64_t pair = mine.begin; pair < mine.end; ++pair) {
            float* const total = all_sums + pair * tasks.parts * sum_floats;
            for (int64_t part = 1; part < tasks.parts; ++part)  // a fixed order
                for (int64_t i = 0; i < sum_floats; ++i) total[i] += total[part * sum_floats + i];
            write_key_gradients(work, pair / shape.kv_heads, pair % shape.kv_heads, KeyGradients(shape, total));
        }
    });
}

}  // namespace

constinit const Typed<AttentionBackward> attention_backward{attention_backward_of<float>, attention_backward_of<Bf16>};

}  // namespace lockstep::kernels::cpu::LOCKSTEP_ISA
