// Backward attention. Lanes are keys: P and dS are held as [queries, keys], so that they are operands of the products for
// d_k and d_v; transposed, dS serves d_q. Sums stay in scratch as [head_dim, block]. Compiled once per instruction set, and
// for AMX.
// A block of queries passes its keys twice: dS = P (dP - delta) needs delta, the sum of P dP over all keys. FlashAttention-2
// takes it from the result (delta = d_out . out), whose rounding to bfloat16 then weighs on every key of a query: gradients of
// queries and keys were 1.15 to 1.65 times as far from exact ones. P and dP stay in scratch between the passes.
// A block of a ring does not have all keys. It takes delta from the result, and passes its keys once.
#include <limits>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/attention_products.h"

namespace lockstep::kernels::cpu::LOCKSTEP_ISA {

extern const Typed<AttentionBackward> attention_backward;
extern const Typed<AttentionBlockBackward> attention_block_backward;

namespace {

template <class T>
struct Work {
    const AttentionShape& shape;
    const AttentionMask& mask;
    const T *q, *k, *v;
    const float* lse;
    const T* d_out;
    const T* out;  // delta is from it; none: from all keys
    Delta delta() const { return out ? Delta::of_result : Delta::of_keys; }
};

// D: how gradients are stored.
template <class D>
struct Gradients {
    D *d_q, *d_k, *d_v;
    RingBlock block = RingBlock::first;
};

struct BackwardScratch {
    BackwardScratch(const AttentionShape& s, Delta from, float* begin) : operand(operand_elements(s, Products::kKernel)) {
        Scratch scratch(begin);
        keys = scratch.of<Operand>(key_blocks(s) * operand);
        keys_over_tokens = scratch.of<Operand>(key_blocks(s) * operand);
        values = scratch.of<Operand>(key_blocks(s) * operand);
        query = scratch.of<Operand>(operand);
        query_over_tokens = scratch.of<Operand>(operand);
        d_out = scratch.of<Operand>(operand);
        d_out_over_tokens = scratch.of<Operand>(operand);
        d_query = scratch.floats(sum_elements(s, Products::kKernel));
        p = scratch.floats(score_blocks(s, from) * kBlock * kBlock);
        ds = scratch.floats(score_blocks(s, from) * kBlock * kBlock);
        lse = scratch.floats(kBlock);
        delta = scratch.floats(kBlock * kLanes);
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
    float *p, *ds;                                                   // [score blocks, queries, keys]; ds is first dP
    float *lse, *delta;                                              // [queries]; delta is first [queries, lanes]
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
    pack_key_blocks(s, w.mask, b, scratch.key_bounds, [&](int64_t block, int64_t row, int64_t count) {
        const int64_t from = row * stride + head * d, to = block * scratch.operand;
        Products::pack<Side::right>(count, d, w.k + from, stride, scratch.keys + to);
        Products::pack_over_tokens(count, d, w.k + from, stride, scratch.keys_over_tokens + to);
        Products::pack<Side::right>(count, d, w.v + from, stride, scratch.values + to);
    });
}

// Of one tile column of keys. On entry p holds scores and ds holds d_out * V^T. With delta from all keys, on exit they are P,
// negative where it is dropped, and dP, whose products are added to delta. Else they are P, only from what was kept, and dS.
template <bool Masked, bool Drops, Delta From>
void probabilities(const BackwardScratch& scratch, float* p, float* ds, int64_t column, Range queries, float scale,
                   int32_t window, const AttentionDropout& drop) {
    for (int half = 0; half < 2; ++half) {
        const int64_t lane = column + half * kLanes;
        const IntVec kv_pos = load(scratch.kv_pos + lane), kv_doc = load(scratch.kv_doc + lane);
        for (int64_t s = queries.begin; s < queries.end; ++s) {
            float *const p_row = p + s * kBlock + lane, *const ds_row = ds + s * kBlock + lane;
            Vec probability = exp(scaled(load(p_row), scale) - scratch.lse[s]), d_probability = load(ds_row);
            if constexpr (Masked) {
                const IntVec visible =
                    (kv_pos <= scratch.pos[s]) & (minus(splat(scratch.pos[s]), kv_pos) < window) & (kv_doc == scratch.doc[s]);
                probability = visible ? probability : Vec{};
            }
            Vec kept = probability;
            if constexpr (Drops) {
                const auto low = static_cast<uint32_t>(scratch.low[s]), high = static_cast<uint32_t>(scratch.high[s]);
                const BitVec bits = dropout_bits<BitVec>(reinterpret_cast<BitVec>(kv_pos), low, high);
                d_probability = keep_where(bits, drop.threshold, d_probability * drop.scale);
                if constexpr (From == Delta::of_keys) {
                    kept = probability * (keep_where(bits, drop.threshold, splat(2.0f)) - 1.0f);
                    store(ds_row, d_probability);
                } else {
                    kept = keep_where(bits, drop.threshold, probability * drop.scale);
                }
            }
            store(p_row, kept);
            if constexpr (From == Delta::of_keys) {
                float* const delta = scratch.delta + s * kLanes;
                store(delta, load(delta) + probability * d_probability);
            } else {
                store(ds_row, probability * (d_probability - scratch.delta[s]));
            }
        }
    }
}

// P, only from what was kept, and dS.
template <bool Drops>
void score_gradients(float* p, float* ds, const float* delta, int64_t column, Range queries, float drop_scale) {
    for (int64_t s = queries.begin; s < queries.end; ++s) {
        for (int64_t i = s * kBlock + column; i < s * kBlock + column + kTileColumns; i += kLanes) {
            const Vec signed_p = load(p + i);
            if constexpr (Drops) {
                const Vec kept = maximum(Vec{}, signed_p);  // in this order NaN stays
                store(p + i, kept * drop_scale);
                store(ds + i, maximum(kept, -signed_p) * (load(ds + i) - delta[s]));
            } else {
                store(ds + i, signed_p * (load(ds + i) - delta[s]));
            }
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

// A block of keys paired with the current block of queries, and where in scratch its scores are.
struct BlockPair {
    int64_t block;
    Visibility seen;
    int64_t query_count, key_count;
    int64_t scores;
};

// The queries that see keys of a tile column.
template <class T>
Range queries_of(const Work<T>& w, const BlockPair& pair, int64_t column, const BackwardScratch& scratch) {
    if (pair.seen == Visibility::all) return {0, pair.query_count};
    const int64_t count = std::min<int64_t>(kTileColumns, pair.key_count - column);
    return visible_queries(bounds(scratch.kv_pos + column, scratch.kv_doc + column, count), window_of(w.shape), scratch.pos,
                           scratch.doc, pair.query_count);
}

template <class T>
void load_key_places(const Work<T>& w, int64_t b, const BlockPair& pair, const BackwardScratch& scratch) {
    const int64_t at = b * w.shape.kv_seq + pair.block * kBlock;
    pad_to_block(pair.key_count, w.mask.kv_pos + at, scratch.kv_pos);
    pad_to_block(pair.key_count, w.mask.kv_doc + at, scratch.kv_doc);
    std::fill(scratch.kv_pos + pair.key_count, scratch.kv_pos + kBlock, std::numeric_limits<int32_t>::max());  // nobody sees them
}

// P and dP of the pair, or P and dS.
template <Delta From, class T>
void score_pair(const Work<T>& w, int64_t b, const BlockPair& pair, const BackwardScratch& scratch) {
    const int64_t d = w.shape.head_dim;
    float *const p = scratch.p + pair.scores * kBlock * kBlock, *const ds = scratch.ds + pair.scores * kBlock * kBlock;
    load_key_places(w, b, pair, scratch);
    const bool some = pair.seen == Visibility::some || pair.key_count < kBlock;
    const auto run = w.mask.drop.noise ? (some ? probabilities<true, true, From> : probabilities<false, true, From>)
                                       : (some ? probabilities<true, false, From> : probabilities<false, false, From>);
    for (int64_t column = 0; column < pair.key_count; column += kTileColumns) {
        const Range queries = queries_of(w, pair, column, scratch);
        if (queries.count() == 0) continue;
        Products::scores(queries, column, d, scratch.query, scratch.keys + pair.block * scratch.operand, p);
        Products::scores(queries, column, d, scratch.d_out, scratch.values + pair.block * scratch.operand, ds);
        run(scratch, p, ds, column, queries, w.shape.scale, window_of(w.shape), w.mask.drop);
    }
}

// P and dP, or P and dS, are multiplied. Behind score_pair of this pair, with delta from all keys of all pairs.
template <Delta From, class T>
void add_pair(const Work<T>& w, int64_t b, const BlockPair& pair, const BackwardScratch& scratch, const KeyGradients& sums) {
    const int64_t d = w.shape.head_dim, block = pair.block;
    float *const p = scratch.p + pair.scores * kBlock * kBlock, *const ds = scratch.ds + pair.scores * kBlock * kBlock;
    if constexpr (From == Delta::of_keys) load_key_places(w, b, pair, scratch);
    for (int64_t column = 0; column < pair.key_count; column += kTileColumns) {
        const Range queries = queries_of(w, pair, column, scratch);
        clear_rows(ds + column, {0, queries.begin});
        clear_rows(ds + column, {queries.end, kBlock});
        if (queries.count() == 0) continue;
        if constexpr (From == Delta::of_keys) {
            const auto run = w.mask.drop.noise ? score_gradients<true> : score_gradients<false>;
            run(p, ds, scratch.delta, column, queries, w.mask.drop.scale);
        }
        Products::add_product(queries, column, d, scratch.d_out_over_tokens, p, sums.d_values + block * sums.block);
        Products::add_product(queries, column, d, scratch.query_over_tokens, ds, sums.d_keys + block * sums.block);
    }
    for (int64_t column = 0; column < pair.query_count; column += kTileColumns) {
        Range keys{0, pair.key_count};
        if (pair.seen == Visibility::some)
            keys = visible_keys(bounds(scratch.pos + column, scratch.doc + column, kTileColumns), window_of(w.shape),
                                scratch.kv_pos, scratch.kv_doc, pair.key_count);
        if (keys.count() == 0) continue;
        Products::add_transposed(keys, column, d, scratch.keys_over_tokens + block * scratch.operand, ds, scratch.d_query);
    }
}

template <class T>
float dot(const T* x, const T* y, int64_t n) {
    Vec total{};
    for (int64_t i = 0; i < n; i += kLanes) total += load(x + i, n - i) * load(y + i, n - i);
    return sum(total);
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
    for (int64_t i = 0; i < count; ++i) scratch.lse[i] = w.lse[row + i * heads];
    std::fill(scratch.delta, scratch.delta + kBlock * kLanes, 0.0f);
    for (int64_t i = 0; w.out && i < count; ++i)
        scratch.delta[i] = dot(w.d_out + (row + i * heads) * d, w.out + (row + i * heads) * d, d);
    std::fill(scratch.d_query, scratch.d_query + sum_elements(s, Products::kKernel), 0.0f);
}

// What query_block is left to do where no key is seen.
template <class D>
void hidden_query_block(const AttentionShape& s, const Gradients<D>& gradients, int64_t row, int64_t count) {
    const int64_t d = s.head_dim, heads = s.kv_heads * s.group;
    if (gradients.block == RingBlock::later) return;
    for (int64_t i = 0; i < count; ++i) std::fill_n(gradients.d_q + (row + i * heads) * d, d, D(0.0f));
}

template <class T, class D>
void query_block(const Work<T>& w, const Gradients<D>& gradients, int64_t b, int64_t head, int64_t member, int64_t block,
                 BackwardScratch& scratch, const KeyGradients& sums) {
    const AttentionShape& s = w.shape;
    const int64_t d = s.head_dim, first = block * kBlock, count = std::min(kBlock, s.seq - first);
    const int64_t heads = s.kv_heads * s.group;
    const int64_t row = (b * s.seq + first) * heads + head * s.group + member;  // [batch, seq, kv_heads, group]
    const Bounds queries = bounds(w.mask.pos + b * s.seq + first, w.mask.doc + b * s.seq + first, count);
    const auto each_pair = [&](const auto& visit) {
        return each_visible_block(s, queries, scratch.key_bounds, [&](int64_t j, Visibility seen) {
            visit(BlockPair{j, seen, count, std::min(kBlock, s.kv_seq - j * kBlock), w.out ? 0 : j});
        });
    };
    if (!each_pair([](const BlockPair&) {})) return hidden_query_block(s, gradients, row, count);
    load_query_block(w, b, first, row, count, scratch);
    if (w.mask.drop.noise)
        row_keys(w.mask.drop, w.mask.drop.noise + b * s.seq + first, count, head, member, scratch.low, scratch.high);
    if (w.out) {
        each_pair([&](const BlockPair& pair) {
            score_pair<Delta::of_result>(w, b, pair, scratch);
            add_pair<Delta::of_result>(w, b, pair, scratch, sums);
        });
    } else {
        each_pair([&](const BlockPair& pair) { score_pair<Delta::of_keys>(w, b, pair, scratch); });
        for (int64_t i = 0; i < kBlock; ++i) scratch.delta[i] = sum(load(scratch.delta + i * kLanes));
        each_pair([&](const BlockPair& pair) { add_pair<Delta::of_keys>(w, b, pair, scratch, sums); });
    }
    scale_in_place(scratch.d_query, d * kBlock, s.scale);
    if constexpr (std::is_same_v<D, float>) {
        if (gradients.block == RingBlock::later)
            return add_transposed_back(count, d, scratch.d_query, gradients.d_q + row * d, heads * d);
    }
    unpack_transposed(count, d, scratch.d_query, gradients.d_q + row * d, heads * d);
}

template <class D>
void write_key_gradients(const AttentionShape& s, const Gradients<D>& gradients, int64_t b, int64_t head,
                         const KeyGradients& sums) {
    const int64_t d = s.head_dim;
    for (int64_t t = 0; t < s.kv_seq; t += kBlock) {
        const int64_t count = std::min(kBlock, s.kv_seq - t), to = ((b * s.kv_seq + t) * s.kv_heads + head) * d;
        float* const d_keys = sums.d_keys + t / kBlock * sums.block;
        if (!Products::kScalesQueries) scale_in_place(d_keys, d * kBlock, s.scale);
        unpack_transposed(count, d, d_keys, gradients.d_k + to, s.kv_heads * d);
        unpack_transposed(count, d, sums.d_values + t / kBlock * sums.block, gradients.d_v + to, s.kv_heads * d);
    }
}

template <class T, class D>
void run(ThreadPool& pool, const Work<T>& work, const Gradients<D>& gradients, void* workspace) {
    const AttentionShape& shape = work.shape;
    const AttentionTasks tasks = attention_tasks(shape, pool.threads());
    const int64_t scratch_floats = attention_backward_scratch_floats(shape, Products::kKernel, work.delta()),
                  sum_floats = key_gradient_floats(shape, Products::kKernel);
    float* const all_sums = static_cast<float*>(workspace) + pool.threads() * scratch_floats;
    pool.parallel([&](int thread, int threads) {
        [[maybe_unused]] const Products::Session session;
        BackwardScratch scratch(shape, work.delta(), static_cast<float*>(workspace) + thread * scratch_floats);
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
                    query_block(work, gradients, b, head, item % shape.group, item / shape.group, scratch, sums);
            if (tasks.parts == 1) write_key_gradients(shape, gradients, b, head, sums);
        }
    });
    if (tasks.parts == 1) return;
    pool.parallel([&](int thread, int threads) {
        const Range mine = split(tasks.heads, threads, thread);
        for (int64_t pair = mine.begin; pair < mine.end; ++pair) {
            float* const total = all_sums + pair * tasks.parts * sum_floats;
            for (int64_t part = 1; part < tasks.parts; ++part)  // a fixed order
                for (int64_t i = 0; i < sum_floats; ++i) total[i] += total[part * sum_floats + i];
            write_key_gradients(shape, gradients, pair / shape.kv_heads, pair % shape.kv_heads, KeyGradients(shape, total));
        }
    });
}

template <class T>
void attention_backward_of(ThreadPool& pool, const AttentionShape& shape, const AttentionMask& mask, const T* q, const T* k,
                           const T* v, const float* lse, const T* d_out, T* d_q, T* d_k, T* d_v, void* workspace) {
    run<T, T>(pool, {shape, mask, q, k, v, lse, d_out, nullptr}, {d_q, d_k, d_v}, workspace);
}

template <class T>
void attention_block_backward_of(ThreadPool& pool, const AttentionShape& shape, const AttentionMask& mask, RingBlock block,
                                 const T* q, const T* k, const T* v, const T* out, const float* lse, const T* d_out, float* d_q,
                                 float* d_k, float* d_v, void* workspace) {
    run<T, float>(pool, {shape, mask, q, k, v, lse, d_out, out}, {d_q, d_k, d_v, block}, workspace);
}

template <class T>
constexpr AttentionBackward<T>* copy_for() {
    if constexpr (Products::kTakes<T>) return attention_backward_of<T>;
    else return nullptr;
}
template <class T>
constexpr AttentionBlockBackward<T>* block_copy_for() {
    if constexpr (Products::kTakes<T>) return attention_block_backward_of<T>;
    else return nullptr;
}

}  // namespace

constinit const Typed<AttentionBackward> attention_backward([]<class T>() { return copy_for<T>(); });
constinit const Typed<AttentionBlockBackward> attention_block_backward([]<class T>() { return block_copy_for<T>(); });

}  // namespace lockstep::kernels::cpu::LOCKSTEP_ISA
