// Attention of few queries over many keys: one token against a cache. Nothing is dropped and nothing packed, every key and
// value is read once for all queries of its group. Compiled once per instruction set.
#include <limits>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/attention_blocks.h"

namespace lockstep::kernels::cpu::LOCKSTEP_ISA {

extern const Typed<Attention> attention_row;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

template <class T>
float dot(const T* x, const T* y, int64_t n) {
    Vec total[2] = {};
    int64_t i = 0;
    for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
        total[0] += load(x + i) * load(y + i);
        total[1] += load(x + i + kLanes) * load(y + i + kLanes);
    }
    for (; i < n; i += kLanes) total[0] += load(x + i, n - i) * load(y + i, n - i);
    return sum(total[0] + total[1]);
}

// scores become exp(score - largest); returns their sum. `count` scores, with room for whole vectors behind them.
float exponentials(float* scores, int64_t count, float largest) {
    std::fill(scores + count, scores + (count + kLanes - 1) / kLanes * kLanes, -kInfinity);
    Vec total{};
    for (int64_t t = 0; t < count; t += kLanes) {
        const Vec p = exp(load(scores + t) - largest);
        store(scores + t, p);
        total += p;
    }
    return sum(total);
}

template <class T>
struct Head {  // one token's queries that share a key head
    const T *q, *k, *v;
    T* out;
    float* lse;
    const int32_t *kv_pos, *kv_doc;
    int32_t pos, doc;
    int64_t stride;  // between keys
};

// scores [group, a line-rounded kv_seq], then sums [group, a line-rounded head_dim].
template <class T>
void attend(const AttentionShape& s, const Head<T>& h, float* scores) {
    const int64_t d = s.head_dim, line = (d + 15) / 16 * 16, row = attention_row_scratch_floats(s) / s.group - line;
    float* const sums = scores + s.group * row;
    const int32_t window = window_of(s);
    const Range keys = visible_keys(bounds(&h.pos, &h.doc, 1), window, h.kv_pos, h.kv_doc, s.kv_seq);
    for (int64_t t = keys.begin; t < keys.end; ++t) {
        const bool visible = h.kv_pos[t] <= h.pos && h.pos - h.kv_pos[t] < window && h.kv_doc[t] == h.doc;
        for (int64_t g = 0; g < s.group; ++g)
            scores[g * row + t - keys.begin] = visible ? s.scale * dot(h.q + g * d, h.k + t * h.stride, d) : -kInfinity;
    }
    for (int64_t g = 0; g < s.group; ++g) {
        float* own = scores + g * row;
        float largest = -kInfinity;
        for (int64_t t = 0; t < keys.count(); ++t) largest = std::max(largest, own[t]);
        const float total = largest == -kInfinity ? 0 : exponentials(own, keys.count(), largest);
        h.lse[g] = total == 0 ? -kInfinity : largest + std::log(total);
        if (total == 0) std::fill(own, own + keys.count(), 0.0f);
        else scale_in_place(own, keys.count(), 1 / total);
    }
    std::fill(sums, sums + s.group * line, 0.0f);
    for (int64_t t = keys.begin; t < keys.end; ++t) {
        for (int64_t g = 0; g < s.group; ++g) {
            const float p = scores[g * row + t - keys.begin];
            if (p == 0) continue;  // hidden, or so small that it counts for nothing
            float* own = sums + g * line;
            for (int64_t i = 0; i < d; i += kLanes) store(own + i, load(own + i) + p * load(h.v + t * h.stride + i, d - i));
        }
    }
    for (int64_t g = 0; g < s.group; ++g)
        for (int64_t i = 0; i < d; i += kLanes) store(h.out + g * d + i, load(sums + g * line + i), d - i);
}

template <class T>
void attention_row_of(ThreadPool& pool, const AttentionShape& s, const AttentionMask& mask, const T* q, const T* k, const T* v,
                      T* out, float* lse, void* workspace) {
    pool.parallel([&](int thread, int threads) {
        float* scores = static_cast<float*>(workspace) + thread * attention_row_scratch_floats(s);
        const Range mine = split(s.batch * s.seq * s.kv_heads, threads, thread);
        for (int64_t item = mine.begin; item < mine.end; ++item) {
            const int64_t token = item / s.kv_heads, b = token / s.seq, head = item % s.kv_heads;
            const int64_t query = item * s.group, key = (b * s.kv_seq * s.kv_heads + head) * s.head_dim;
            const Head<T> h{q + query * s.head_dim,     k + key,         v + key,
                            out + query * s.head_dim,   lse + query,     mask.kv_pos + b * s.kv_seq,
                            mask.kv_doc + b * s.kv_seq, mask.pos[token], mask.doc[token],
                            s.kv_heads * s.head_dim};
            attend(s, h, scores);
        }
    });
}

}  // namespace

constinit const Typed<Attention> attention_row([]<class T>() { return attention_row_of<T>; });

}  // namespace lockstep::kernels::cpu::LOCKSTEP_ISA
