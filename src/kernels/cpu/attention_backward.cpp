// Backward attention. Lanes are keys: P and dS are held as [queries, keys], so that they are operands of the products for
// d_k and d_v; transposed, dS serves d_q. Sums stay in scratch as [head_dim, block]. Compiled once per instruction set, and
// for AMX.
#include <limits>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/attention_products.h"

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
    BackwardScratch(const AttentionShape& s, float* begin) : operand(operand_elements(s, Products::kKernel)) {
        Scratch scratch(begin);
        keys = scratch.of<Operand>(key_blocks(s) * operand);
        keys_over_tokens = scratch.of<Operand>(key_blocks(s) * operand);
        values = scratch.of<Operand>(key_blocks(s) * operand);
        query = scratch.of<Operand>(operand);
        query_over_tokens = scratch.of<Operand>(operand);
        d_out = scratch.of<Operand>(operand);
        d_out_over_tokens = scratch.of<Operand>(operand);
        d_query = scratch.floats(sum_elements(s, Products::kKernel));
        p = scratch.floats(kBlock * kBlock);
        ds = scratch.floats(kBlock * kBlock);
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
    using Operand = Products::Element;
    int64_t operand;                                                 // elements of one
    Operand *keys, *keys_over_tokens, *values;                       // [key blocks, operand]
    Operand *query, *query_over_tokens, *d_out, *d_out_over_tokens;  // queries are scaled
    float* d_query;                                                  // [head_dim, kBlock]
    float *p, *ds;                                                   // [queries, keys]
    float *lse, *delta;                                              // [queries]; delta = sum over head_dim of d_out * out
    int32_t *pos, *doc, *kv_pos, *kv_doc;                            // of the current blocks
    int32_t *low, *high;                                             // [queries], of dropout
    Bounds* key_bounds;
};

// Sums of one (batch, kv_head): d_k then d_v, each [key blocks, head_dim, kBlock].
struct KeyGradients {
    KeyGradients(const AttentionShape& s, float* begin)
        : block(sum_elements(s, Products::kKernel)), d_keys(begin), d_values(begin + key_blocks(s) * block) {}
    int64_t block;  // elements of one
    float *d_keys, *d_values;
};

template <class T>
void pack_keys(const Work<T>& w, int64_t b, int64_t head, BackwardScratch& scratch) {
    const AttentionShape& s = w.shape;
    const int64_t d = s.head_dim, stride = s.kv_heads * d;
    for (int64_t block = 0; block < key_blocks(s); ++block) {
        const int64_t t = block * kBlock, count = std::min(kBlock, s.kv_seq - t), row = b * s.kv_seq + t;
        const int64_t from = row * stride + head * d;
        const int64_t to = block * scratch.operand;
        Products::pack<Side::right>(count, d, w.k + from, stride, scratch.keys + to);
        Products::pack_over_tokens(count, d, w.k + from, stride, scratch.keys_over_tokens + to);
        Products::pack<Side::right>(count, d, w.v + from, stride, scratch.values + to);
        scratch.key_bounds[block] = bounds(w.mask.kv_pos + row, w.mask.kv_doc + row, count);
    }
}

// On entry p holds scores and ds holds d_out * V^T, for one tile column of keys; on exit P and dS.
template <bool Masked, bool Drops>
void softmax_backward(BackwardScratch& scratch, int64_t column, Range queries, float scale, int32_t window,
                      const AttentionDropout& drop) {
    for (int half = 0; half < 2; ++half) {
        const int64_t lane = column + half * kLanes;
        const IntVec kv_pos = load(scratch.kv_pos + lane), kv_doc = load(scratch.kv_doc + lane);
        for (int64_t s = queries.begin; s < queries.end; ++s) {
            float *p = scratch.p + s * kBlock + lane, *ds = scratch.ds + s * kBlock + lane;
            Vec probability = exp(scaled(load(p), scale) - scratch.lse[s]);
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

// Of a tile column: queries that see none of its keys.
void clear_rows(float* column, Range rows) {
    for (int64_t s = rows.begin; s < rows.end; ++s) {
        store(column + s * kBlock, Vec{});
        store(column + s * kBlock + kLanes, Vec{});
    }
}

template <class T>
void block_pair(const Work<T>& w, int64_t b, int64_t block, Visibility seen, int64_t query_count, BackwardScratch& scratch,
                const KeyGradients& sums) {
    const int64_t d = w.shape.head_dim, t = block * kBlock, count = std::min(kBlock, w.shape.kv_seq - t);
    const int32_t window = window_of(w.shape);
    pad_to_block(count, w.mask.kv_pos + b * w.shape.kv_seq + t, scratch.kv_pos);
    pad_to_block(count, w.mask.kv_doc + b * w.shape.kv_seq + t, scratch.kv_doc);
    for (int64_t column = 0; column < count; column += kTileColumns) {
        Range queries{0, query_count};
        if (seen == Visibility::some)
            queries = visible_queries(bounds(scratch.kv_pos + column, scratch.kv_doc + column, kTileColumns), window, scratch.pos,
                                      scratch.doc, query_count);
        if (queries.count() == 0) {
            clear_rows(scratch.ds + column, {0, kBlock});
            continue;
        }
        Products::scores(queries, column, d, scratch.query, scratch.keys + block * scratch.operand, scratch.p);
        Products::scores(queries, column, d, scratch.d_out, scratch.values + block * scratch.operand, scratch.ds);
        const auto softmax = w.mask.drop.noise
                                 ? (seen == Visibility::some ? softmax_backward<true, true> : softmax_backward<false, true>)
                                 : (seen == Visibility::some ? softmax_backward<true, false> : softmax_backward<false, false>);
        softmax(scratch, column, queries, w.shape.scale, window, w.mask.drop);
        clear_rows(scratch.ds + column, {0, queries.begin});
        clear_rows(scratch.ds + column, {queries.end, kBlock});
        Products::add_product(queries, column, d, scratch.d_out_over_tokens, scratch.p, sums.d_values + block * sums.block);
        Products::add_product(queries, column, d, scratch.query_over_tokens, scratch.ds, sums.d_keys + block * sums.block);
    }
    for (int64_t column = 0; column < query_count; column += kTileColumns) {
        Range keys{0, count};
        if (seen == Visibility::some)
            keys = visible_keys(bounds(scratch.pos + column, scratch.doc + column, kTileColumns), window, scratch.kv_pos,
                                scratch.kv_doc, count);
        if (keys.count() == 0) continue;
        Products::add_transposed(keys, column, d, scratch.keys_over_tokens + block * scratch.operand, scratch.ds,
                                 scratch.d_query);
    }
}

template <class T>
void load_query_block(const Work<T>& w, int64_t b, int64_t first, int64_t row, int64_t count, BackwardScratch& scratch) {
    const AttentionShape& s = w.shape;
    const int64_t d = s.head_dim, heads = s.kv_heads * s.group;
    Products::pack<Side::left>(count, d, w.q + row * d, heads * d, scratch.query);
    Products::pack_over_tokens(count, d, w.q + row * d, heads * d, scratch.query_over_tokens);
    Products::scale_queries(d, s.scale, scratch.query);
    Products::scale_queries(d, s.scale, scratch.query_over_tokens);
    Products::pack<Side::left>(count, d, w.d_out + row * d, heads * d, scratch.d_out);
    Products::pack_over_tokens(count, d, w.d_out + row * d, heads * d, scratch.d_out_over_tokens);
    pad_to_block(count, w.mask.pos + b * s.seq + first, scratch.pos);
    pad_to_block(count, w.mask.doc + b * s.seq + first, scratch.doc);
    for (int64_t i = 0; i < count; ++i) {
        const int64_t at = row + i * heads;
        Vec total{};
        for (int64_t c = 0; c < d; c += kLanes) total += load(w.out + at * d + c, d - c) * load(w.d_out + at * d + c, d - c);
        scratch.delta[i] = sum(total);
        scratch.lse[i] = w.lse[at];
    }
    std::fill(scratch.d_query, scratch.d_query + sum_elements(s, Products::kKernel), 0.0f);
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
        float* const d_keys = sums.d_keys + t / kBlock * sums.block;
        if (!Products::kScalesQueries) scale_in_place(d_keys, d * kBlock, s.scale);
        unpack_transposed(count, d, d_keys, w.d_k + to, s.kv_heads * d);
        unpack_transposed(count, d, sums.d_values + t / kBlock * sums.block, w.d_v + to, s.kv_heads * d);
    }
}

template <class T>
void attention_backward_of(ThreadPool& pool, const AttentionShape& shape, const AttentionMask& mask, const T* q, const T* k,
                           const T* v, const T* out, const float* lse, const T* d_out, T* d_q, T* d_k, T* d_v, void* workspace) {
    const Work<T> work{shape, mask, q, k, v, out, lse, d_out, d_q, d_k, d_v};
    const AttentionTasks tasks = attention_tasks(shape, pool.threads());
    const int64_t scratch_floats = attention_backward_scratch_floats(shape, Products::kKernel),
                  sum_floats = key_gradient_floats(shape, Products::kKernel);
    float* const all_sums = static_cast<float*>(workspace) + pool.threads() * scratch_floats;
    pool.parallel([&](int thread, int threads) {
        [[maybe_unused]] const Products::Session session;
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

template <class T>
constexpr AttentionBackward<T>* copy_for() {
    if constexpr (Products::kTakes<T>) return attention_backward_of<T>;
    else return nullptr;
}

}  // namespace

constinit const Typed<AttentionBackward> attention_backward{copy_for<float>(), copy_for<Bf16>()};

}  // namespace lockstep::kernels::cpu::LOCKSTEP_ISA
