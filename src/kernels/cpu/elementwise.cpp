// Compiled once per instruction set.
#include "kernels/cpu/elementwise.h"

#include <algorithm>

#include "kernels/cpu/simd.h"

namespace lockstep::kernels::cpu::LOCKSTEP_ISA {

Add add;
Scale scale;
Exponential exponential;
SwiGlu swiglu;
SwiGluBackward swiglu_backward;
Embedding embedding;
EmbeddingBackward embedding_backward;

namespace {

// Calls body(offset, lanes) for whole vectors and one shorter rest. Shares are multiples of 16 elements, a cache line, so
// that every element is computed by the same code for any number of threads.
template <typename Body>
void for_each_vector(ThreadPool& pool, int64_t n, const Body& body) {
    pool.parallel([&](int thread, int threads) {
        const Range mine = split(n, threads, thread, 16);
        int64_t i = mine.begin;
        for (; i + kLanes <= mine.end; i += kLanes) body(i, kLanes);
        if (i < mine.end) body(i, mine.end - i);
    });
}

LOCKSTEP_INLINE Vec sigmoid(Vec x) { return 1.0f / (1.0f + exp(-x)); }

}  // namespace

void add(ThreadPool& pool, int64_t n, const float* const* inputs, int count, float* out) {
    if (count == 2) {  // the residual add
        for_each_vector(pool, n, [=, a = inputs[0], b = inputs[1]](int64_t i, int64_t lanes) {
            store(out + i, load(a + i, lanes) + load(b + i, lanes), lanes);
        });
        return;
    }
    for_each_vector(pool, n, [=](int64_t i, int64_t lanes) {
        Vec total = load(inputs[0] + i, lanes);
        for (int k = 1; k < count; ++k) total += load(inputs[k] + i, lanes);
        store(out + i, total, lanes);
    });
}

void scale(ThreadPool& pool, int64_t n, const float* x, float factor, float* out) {
    for_each_vector(pool, n, [=](int64_t i, int64_t lanes) { store(out + i, load(x + i, lanes) * factor, lanes); });
}

void exponential(ThreadPool& pool, int64_t n, const float* x, float* out) {
    for_each_vector(pool, n, [=](int64_t i, int64_t lanes) { store(out + i, exp(load(x + i, lanes)), lanes); });
}

void swiglu(ThreadPool& pool, int64_t n, const float* gate, const float* up, float* y) {
    for_each_vector(pool, n, [=](int64_t i, int64_t lanes) {
        const Vec g = load(gate + i, lanes);
        store(y + i, g * sigmoid(g) * load(up + i, lanes), lanes);
    });
}

void swiglu_backward(ThreadPool& pool, int64_t n, const float* dy, const float* gate, const float* up, float* d_gate,
                     float* d_up) {
    for_each_vector(pool, n, [=](int64_t i, int64_t lanes) {
        const Vec g = load(gate + i, lanes), u = load(up + i, lanes), d = load(dy + i, lanes);
        const Vec s = sigmoid(g);
        store(d_gate + i, d * u * s * (1.0f + g * (1.0f - s)), lanes);
        store(d_up + i, d * g * s, lanes);
    });
}

void embedding(ThreadPool& pool, int64_t tokens, int64_t hidden, const int32_t* ids, int64_t first_id, int64_t rows,
               const float* table, float* out) {
    pool.parallel([&](int thread, int threads) {
        const Range mine = split(tokens, threads, thread);
        for (int64_t t = mine.begin; t < mine.end; ++t) {
            const int64_t row = ids[t] - first_id;
            if (row < 0 || row >= rows) std::fill(out + t * hidden, out + (t + 1) * hidden, 0.0f);
            else std::copy(table + row * hidden, table + (row + 1) * hidden, out + t * hidden);
        }
    });
}

void embedding_backward(ThreadPool& pool, int64_t tokens, int64_t hidden, const int32_t* ids, int64_t first_id, int64_t rows,
                        const float* d_out, float* d_table, bool accumulate) {
    if (!accumulate)
        pool.parallel([&](int thread, int threads) {
            const Range mine = split(rows * hidden, threads, thread, 16);
            std::fill(d_table + mine.begin, d_table + mine.end, 0.0f);
        });
    pool.parallel([&](int thread, int threads) {
        const Range columns = split(hidden, threads, thread, 16);
        for (int64_t t = 0; t < tokens; ++t) {
            const int64_t row = ids[t] - first_id;
            if (row < 0 || row >= rows) continue;
            const float* from = d_out + t * hidden;
            float* to = d_table + row * hidden;
            for (int64_t i = columns.begin; i < columns.end; i += kLanes) {
                const int64_t lanes = columns.end - i;
                store(to + i, load(to + i, lanes) + load(from + i, lanes), lanes);
            }
        }
    });
}

}  // namespace lockstep::kernels::cpu::LOCKSTEP_ISA
