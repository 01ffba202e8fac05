// Forward attention. Lanes are queries: a block of scores is held transposed, [keys, queries], so that the softmax needs
// no sum across lanes and the block is at once an operand of the product with V.
// Compiled once per instruction set, and for AMX.
#include "kernels/cpu/attention.h"

#include <limits>

#include "kernels/cpu/attention_products.h"

namespace lockstep::kernels::cpu::LOCKSTEP_ISA {

extern const Typed<Attention> attention;
extern const Typed<AttentionBlock> attention_block;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

template <class T>
struct Work {
    const AttentionShape& shape;
    const AttentionMask& mask;
    const T *q, *k, *v;
};

// Out: how the result is stored.
template <class Out>
struct Result {
    Out* out;
    float* lse;
    RingBlock block = RingBlock::first;
};

struct ForwardScratch {
    ForwardScratch(const AttentionShape& s, float* begin) : operand(operand_elements(s, Products::kKernel)) {
        Scratch scratch(begin);
        keys = scratch.of<Operand>(key_blocks(s) * operand);
        values = scratch.of<Operand>(key_blocks(s) * operand);
        query = scratch.of<Operand>(operand);
        output = scratch.floats(sum_elements(s, Products::kKernel));
        scores = scratch.floats(kBlock * kBlock);
        row_max = scratch.floats(kBlock);
        row_sum = scratch.floats(kBlock);
        pos = scratch.ints(kBlock);
        doc = scratch.ints(kBlock);
        low = scratch.ints(kBlock);
        high = scratch.ints(kBlock);
        key_bounds = reinterpret_cast<Bounds*>(scratch.ints(4 * key_blocks(s)));
    }
    using Operand = Products::Element;
    int64_t operand;         // elements of one
    Operand *keys, *values;  // [key blocks, operand]; the latter over tokens
    Operand* query;          // scaled
    float* output;           // [head_dim, kBlock]
    float* scores;           // [keys, queries]
    float *row_max, *row_sum;
    int32_t *pos, *doc, *low, *high;  // the last two: of dropout
    Bounds* key_bounds;
};

template <class T>
void pack_keys(const Work<T>& w, int64_t b, int64_t head, ForwardScratch& scratch) {
    const AttentionShape& s = w.shape;
    const int64_t stride = s.kv_heads * s.head_dim;
    pack_key_blocks(s, w.mask, b, scratch.key_bounds, [&](int64_t block, int64_t row, int64_t count) {
        const int64_t from = row * stride + head * s.head_dim;
        Products::pack<Side::left>(count, s.head_dim, w.k + from, stride, scratch.keys + block * scratch.operand);
        Products::pack_over_tokens(count, s.head_dim, w.v + from, stride, scratch.values + block * scratch.operand);
    });
}

// Scores of keys [keys.begin, keys.end) for one tile column of queries become probabilities relative to the new row
// maximum, row_max and row_sum are brought up to date. Returns in `rescale` what earlier sums must be multiplied with.
template <bool Masked>
void softmax_update(ForwardScratch& scratch, int64_t column, Range keys, float scale, int32_t window, const int32_t* kv_pos,
                    const int32_t* kv_doc, Vec rescale[2]) {
    for (int half = 0; half < 2; ++half) {
        const int64_t lane = column + half * kLanes;
        float* scores = scratch.scores + lane;
        Vec largest = load(scratch.row_max + lane);
        const Vec before = largest;
        if constexpr (Masked) {
            const IntVec pos = load(scratch.pos + lane), doc = load(scratch.doc + lane);
            for (int64_t t = keys.begin; t < keys.end; ++t) {
                const IntVec visible = (pos >= kv_pos[t]) & (minus(pos, splat(kv_pos[t])) < window) & (doc == kv_doc[t]);
                const Vec score = visible ? scaled(load(scores + t * kBlock), scale) : splat(-kInfinity);
                store(scores + t * kBlock, score);
                largest = maximum(score, largest);
            }
        } else {
            for (int64_t t = keys.begin; t < keys.end; ++t) largest = maximum(scaled(load(scores + t * kBlock), scale), largest);
        }
        // Where nothing was visible yet the maximum is -inf; 0 in its place keeps exp(-inf - 0) = 0.
        const Vec reference = largest == splat(-kInfinity) ? Vec{} : largest;
        Vec total{};
        for (int64_t t = keys.begin; t < keys.end; ++t) {
            const Vec score = load(scores + t * kBlock);
            const Vec p = exp((Masked ? score : scaled(score, scale)) - reference);
            store(scores + t * kBlock, p);
            total += p;
        }
        rescale[half] = exp(before - reference);
        store(scratch.row_max + lane, largest);
        store(scratch.row_sum + lane, load(scratch.row_sum + lane) * rescale[half] + total);
    }
}

// After the sums of the softmax, which know nothing of it.
void drop_probabilities(const AttentionDropout& drop, ForwardScratch& scratch, int64_t column, Range keys,
                        const int32_t* kv_pos) {
    for (int64_t lane = column; lane < column + kTileColumns; lane += kLanes) {
        const BitVec low = reinterpret_cast<BitVec>(load(scratch.low + lane)),
                     high = reinterpret_cast<BitVec>(load(scratch.high + lane));
        for (int64_t t = keys.begin; t < keys.end; ++t) {
            float* const p = scratch.scores + t * kBlock + lane;
            const BitVec bits = dropout_bits<BitVec>(BitVec{} + static_cast<uint32_t>(kv_pos[t]), low, high);
            store(p, keep_where(bits, drop.threshold, load(p) * drop.scale));
        }
    }
}

template <class T>
void add_key_block(const Work<T>& w, int64_t b, int64_t block, Visibility seen, int64_t query_count, ForwardScratch& scratch) {
    const int64_t d = w.shape.head_dim, t = block * kBlock, count = std::min(kBlock, w.shape.kv_seq - t);
    const int32_t* kv_pos = w.mask.kv_pos + b * w.shape.kv_seq + t;
    const int32_t* kv_doc = w.mask.kv_doc + b * w.shape.kv_seq + t;
    const int32_t window = window_of(w.shape);
    for (int64_t column = 0; column < query_count; column += kTileColumns) {
        Range visible{0, count};
        if (seen == Visibility::some)
            visible =
                visible_keys(bounds(scratch.pos + column, scratch.doc + column, kTileColumns), window, kv_pos, kv_doc, count);
        if (visible.count() == 0) continue;
        Products::scores(visible, column, d, scratch.keys + block * scratch.operand, scratch.query, scratch.scores);
        Vec rescale[2];
        const auto softmax = seen == Visibility::some ? softmax_update<true> : softmax_update<false>;
        softmax(scratch, column, visible, w.shape.scale, window, kv_pos, kv_doc, rescale);
        if (w.mask.drop.noise) drop_probabilities(w.mask.drop, scratch, column, visible, kv_pos);
        for (int64_t i = 0; i < d; ++i) {
            float* output = scratch.output + i * kBlock + column;
            store(output, load(output) * rescale[0]);
            store(output + kLanes, load(output + kLanes) * rescale[1]);
        }
        Products::add_product(visible, column, d, scratch.values + block * scratch.operand, scratch.scores, scratch.output);
    }
}

// Sums of no keys, or of those of earlier blocks: of one key whose score is lse and whose value is out. The first key that is
// seen takes all from one with lse = -infinity.
template <class Out>
void begin_sums(const AttentionShape& s, const Result<Out>& result, int64_t row, int64_t count, ForwardScratch& scratch) {
    std::fill(scratch.output, scratch.output + sum_elements(s, Products::kKernel), 0.0f);
    std::fill(scratch.row_max, scratch.row_max + kBlock, -kInfinity);
    std::fill(scratch.row_sum, scratch.row_sum + kBlock, 0.0f);
    if (result.block == RingBlock::first) return;
    const int64_t heads = s.kv_heads * s.group;
    pack_transposed(count, s.head_dim, result.out + row * s.head_dim, heads * s.head_dim, scratch.output);
    for (int64_t i = 0; i < count; ++i) scratch.row_max[i] = result.lse[row + i * heads], scratch.row_sum[i] = 1;
}

template <class Out>
void end_sums(const AttentionShape& s, const Result<Out>& result, int64_t row, int64_t count, ForwardScratch& scratch) {
    const int64_t d = s.head_dim, heads = s.kv_heads * s.group;
    for (int64_t i = 0; i < count; ++i) {
        const float sum = scratch.row_sum[i];
        result.lse[row + i * heads] = sum == 0 ? -kInfinity : scratch.row_max[i] + std::log(sum);
    }
    for (int64_t i = 0; i < kBlock; ++i) scratch.row_sum[i] = scratch.row_sum[i] == 0 ? 0.0f : 1.0f / scratch.row_sum[i];
    for (int64_t c = 0; c < d; ++c)
        for (int64_t i = 0; i < kBlock; ++i) scratch.output[c * kBlock + i] *= scratch.row_sum[i];
    unpack_transposed(count, d, scratch.output, result.out + row * d, heads * d);
}

template <class T, class Out>
void query_block(const Work<T>& w, const Result<Out>& result, int64_t b, int64_t head, int64_t member, int64_t block,
                 ForwardScratch& scratch) {
    const AttentionShape& s = w.shape;
    const int64_t d = s.head_dim, first = block * kBlock, count = std::min(kBlock, s.seq - first);
    const int64_t heads = s.kv_heads * s.group;
    const int64_t row = (b * s.seq + first) * heads + head * s.group + member;  // [batch, seq, kv_heads, group]
    const Bounds queries = bounds(w.mask.pos + b * s.seq + first, w.mask.doc + b * s.seq + first, count);
    const bool sees_any = each_visible_block(s, queries, scratch.key_bounds, [](int64_t, Visibility) {});
    if (result.block == RingBlock::later && !sees_any) return;
    Products::pack<Side::right>(count, d, w.q + row * d, heads * d, scratch.query);
    Products::scale_queries(d, s.scale, scratch.query);
    pad_to_block(count, w.mask.pos + b * s.seq + first, scratch.pos);
    pad_to_block(count, w.mask.doc + b * s.seq + first, scratch.doc);
    if (w.mask.drop.noise)
        row_keys(w.mask.drop, w.mask.drop.noise + b * s.seq + first, count, head, member, scratch.low, scratch.high);
    begin_sums(s, result, row, count, scratch);
    each_visible_block(s, queries, scratch.key_bounds,
                       [&](int64_t j, Visibility seen) { add_key_block(w, b, j, seen, count, scratch); });
    end_sums(s, result, row, count, scratch);
}

template <class T, class Out>
void run(ThreadPool& pool, const Work<T>& work, const Result<Out>& result, void* workspace) {
    const AttentionShape& shape = work.shape;
    pool.parallel([&](int thread, int threads) {
        [[maybe_unused]] const Products::Session session;
        ForwardScratch scratch(shape,
                               static_cast<float*>(workspace) + thread * attention_scratch_floats(shape, Products::kKernel));
        const AttentionTasks tasks = attention_tasks(shape, threads);
        const Range mine = split(tasks.count(), threads, thread);
        int64_t packed = -1;
        for (int64_t task = mine.begin; task < mine.end; ++task) {
            const int64_t pair = task / tasks.parts, b = pair / shape.kv_heads, head = pair % shape.kv_heads;
            if (pair != packed) pack_keys(work, b, head, scratch);
            packed = pair;
            for (int64_t item = 0; item < shape.group * query_blocks(shape); ++item)
                if (is_item_of_part(item, task % tasks.parts, tasks.parts))
                    query_block(work, result, b, head, item % shape.group, item / shape.group, scratch);
        }
    });
}

template <class T>
void attention_of(ThreadPool& pool, const AttentionShape& shape, const AttentionMask& mask, const T* q, const T* k, const T* v,
                  T* out, float* lse, void* workspace) {
    run<T, T>(pool, {shape, mask, q, k, v}, {out, lse}, workspace);
}

template <class T>
void attention_block_of(ThreadPool& pool, const AttentionShape& shape, const AttentionMask& mask, RingBlock block, const T* q,
                        const T* k, const T* v, float* out, float* lse, void* workspace) {
    run<T, float>(pool, {shape, mask, q, k, v}, {out, lse, block}, workspace);
}

template <class T>
constexpr Attention<T>* copy_for() {
    if constexpr (Products::kTakes<T>) return attention_of<T>;
    else return nullptr;
}
template <class T>
constexpr AttentionBlock<T>* block_copy_for() {
    if constexpr (Products::kTakes<T>) return attention_block_of<T>;
    else return nullptr;
}

}  // namespace

constinit const Typed<Attention> attention([]<class T>() { return copy_for<T>(); });
constinit const Typed<AttentionBlock> attention_block([]<class T>() { return block_copy_for<T>(); });

}  // namespace lockstep::kernels::cpu::LOCKSTEP_ISA
