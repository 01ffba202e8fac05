// Compiled once per instruction set.
#include "kernels/cpu/elementwise.h"

#include <algorithm>

#include "kernels/cpu/for_each_vector.h"
#include "kernels/cpu/simd.h"

namespace lockstep::kernels::cpu::LOCKSTEP_ISA {

extern const Typed<Add> add;
extern const Typed<Scale> scale;
extern const Typed<Narrow> narrow_to;
extern const Typed<Widen> widen_from;
extern const Typed<Accumulate> accumulate;
Exponential exponential;
extern const Typed<SwiGlu> swiglu;
extern const Typed<SwiGluBackward> swiglu_backward;
extern const Typed<SwiGluPacked> swiglu_packed;
extern const Typed<SwiGluPackedBackward> swiglu_packed_backward;
extern const TypedOnStream<Embedding> embedding;
extern const Typed<EmbeddingBackward> embedding_backward;

namespace {

LOCKSTEP_INLINE Vec sigmoid(Vec x) { return 1.0f / (1.0f + exp(-x)); }

template <class T>
void add_of(ThreadPool& pool, int64_t n, const T* const* inputs, int count, T* out) {
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

template <class T>
void scale_of(ThreadPool& pool, int64_t n, const T* x, float factor, T* out) {
    for_each_vector(pool, n, [=](int64_t i, int64_t lanes) { store(out + i, load(x + i, lanes) * factor, lanes); });
}

template <class To, class From>
void cast(ThreadPool& pool, int64_t n, const From* x, To* out) {
    for_each_vector(pool, n, [=](int64_t i, int64_t lanes) { store(out + i, load(x + i, lanes), lanes); });
}

template <class T>
void accumulate_of(ThreadPool& pool, int64_t n, const T* x, float* out) {
    for_each_vector(pool, n, [=](int64_t i, int64_t lanes) { store(out + i, load(out + i, lanes) + load(x + i, lanes), lanes); });
}

template <class T>
LOCKSTEP_INLINE void swiglu_at(const T* gate, const T* up, T* y, int64_t lanes) {
    const Vec g = load(gate, lanes);
    store(y, g * sigmoid(g) * load(up, lanes), lanes);
}
template <class T>
LOCKSTEP_INLINE void swiglu_backward_at(const T* dy, const T* gate, const T* up, T* d_gate, T* d_up, T* y, int64_t lanes) {
    const Vec g = load(gate, lanes), u = load(up, lanes), d = load(dy, lanes);
    const Vec s = sigmoid(g);
    store(d_gate, d * u * s * (1.0f + g * (1.0f - s)), lanes);
    store(d_up, d * g * s, lanes);
    if (y) store(y, g * s * u, lanes);
}

template <class T>
void swiglu_of(ThreadPool& pool, int64_t n, const T* gate, const T* up, T* y) {
    for_each_vector(pool, n, [=](int64_t i, int64_t lanes) { swiglu_at(gate + i, up + i, y + i, lanes); });
}

template <class T>
void swiglu_backward_of(ThreadPool& pool, int64_t n, const T* dy, const T* gate, const T* up, T* d_gate, T* d_up, T* y) {
    for_each_vector(pool, n, [=](int64_t i, int64_t lanes) {
        swiglu_backward_at(dy + i, gate + i, up + i, d_gate + i, d_up + i, y ? y + i : nullptr, lanes);
    });
}

// Calls body(row, column, lanes) for vectors of each row [n]. Threads share out pieces of rows.
template <typename Body>
void for_each_vector_of_rows(ThreadPool& pool, int64_t rows, int64_t n, const Body& body) {
    constexpr int64_t kPiece = 1024;
    const int64_t pieces = (n + kPiece - 1) / kPiece;
    pool.parallel([&](int thread, int threads) {
        const Range mine = split(rows * pieces, threads, thread);
        for (int64_t p = mine.begin; p < mine.end; ++p) {
            const int64_t row = p / pieces, end = std::min(n, (p % pieces + 1) * kPiece);
            int64_t i = p % pieces * kPiece;
            for (; i + kLanes <= end; i += kLanes) body(row, i, kLanes);
            if (i < end) body(row, i, end - i);
        }
    });
}

template <class T>
void swiglu_packed_of(ThreadPool& pool, int64_t rows, int64_t n, const T* both, T* y) {
    for_each_vector_of_rows(pool, rows, n, [=](int64_t row, int64_t i, int64_t lanes) {
        const T* const gate = both + 2 * row * n + i;
        swiglu_at(gate, gate + n, y + row * n + i, lanes);
    });
}

template <class T>
void swiglu_packed_backward_of(ThreadPool& pool, int64_t rows, int64_t n, const T* dy, const T* both, T* d_both, T* y) {
    for_each_vector_of_rows(pool, rows, n, [=](int64_t row, int64_t i, int64_t lanes) {
        const int64_t at = row * n + i, gate = at + row * n, up = gate + n;
        swiglu_backward_at(dy + at, both + gate, both + up, d_both + gate, d_both + up, y ? y + at : nullptr, lanes);
    });
}

template <class S, class T>
void embedding_of(ThreadPool& pool, int64_t tokens, int64_t hidden, const int32_t* ids, int64_t first_id, int64_t rows,
                  const T* table, S* out) {
    pool.parallel([&](int thread, int threads) {
        const Range mine = split(tokens, threads, thread);
        for (int64_t t = mine.begin; t < mine.end; ++t) {
            const int64_t row = ids[t] - first_id;
            S* const to = out + t * hidden;
            if (row < 0 || row >= rows) {
                std::fill(to, to + hidden, S(0.0f));
                continue;
            }
            const T* const from = table + row * hidden;
            for (int64_t i = 0; i < hidden; i += kLanes) store(to + i, load(from + i, hidden - i), hidden - i);
        }
    });
}

template <class T>
void embedding_backward_of(ThreadPool& pool, int64_t tokens, int64_t hidden, const int32_t* ids, int64_t first_id, int64_t rows,
                           const T* d_out, float* d_table, bool accumulate) {
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
            const T* from = d_out + t * hidden;
            float* to = d_table + row * hidden;
            for (int64_t i = columns.begin; i < columns.end; i += kLanes) {
                const int64_t lanes = columns.end - i;
                store(to + i, load(to + i, lanes) + load(from + i, lanes), lanes);
            }
        }
    });
}

}  // namespace

void exponential(ThreadPool& pool, int64_t n, const float* x, float* out) {
    for_each_vector(pool, n, [=](int64_t i, int64_t lanes) { store(out + i, exp(load(x + i, lanes)), lanes); });
}

constinit const Typed<Add> add([]<class T>() { return add_of<T>; });
constinit const Typed<Scale> scale([]<class T>() { return scale_of<T>; });
constinit const Typed<Narrow> narrow_to([]<class T>() { return cast<T, float>; });
constinit const Typed<Widen> widen_from([]<class T>() { return cast<float, T>; });
constinit const Typed<Accumulate> accumulate([]<class T>() { return accumulate_of<T>; });
constinit const Typed<SwiGlu> swiglu([]<class T>() { return swiglu_of<T>; });
constinit const Typed<SwiGluBackward> swiglu_backward([]<class T>() { return swiglu_backward_of<T>; });
constinit const Typed<SwiGluPacked> swiglu_packed([]<class T>() { return swiglu_packed_of<T>; });
constinit const Typed<SwiGluPackedBackward> swiglu_packed_backward([]<class T>() { return swiglu_packed_backward_of<T>; });
constinit const TypedOnStream<Embedding> embedding([]<class S, class T>() { return embedding_of<S, T>; });
constinit const Typed<EmbeddingBackward> embedding_backward([]<class T>() { return embedding_backward_of<T>; });

}  // namespace lockstep::kernels::cpu::LOCKSTEP_ISA
