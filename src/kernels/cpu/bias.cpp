// Compiled once per instruction set.
#include "kernels/cpu/bias.h"

#include <algorithm>

#include "kernels/cpu/dropout_bits.h"
#include "kernels/cpu/rows.h"

namespace lockstep::kernels::cpu::LOCKSTEP_ISA {

extern const Typed<Bias> bias;
extern const Typed<BiasGelu> bias_gelu;
extern const Typed<BiasGeluBackward> bias_gelu_backward;
extern const Typed<Dropout> dropout;
extern const TypedOnStream<BiasDropoutAdd> bias_dropout_add;
extern const Typed<SumRows> sum_rows;

namespace {

// gelu(x) = x s(2u), s the sigmoid, 2u = 2 sqrt(2 / pi) (x + 0.044715 x^3).
constexpr float kRoot = 1.5957691216f, kCube = 0.044715f;
LOCKSTEP_INLINE Vec gelu_share(Vec x) { return 1.0f / (1.0f + exp(-kRoot * (x + kCube * x * x * x))); }

template <class T>
void bias_of(ThreadPool& pool, int64_t rows, int64_t n, const T* x, const T* b, T* y) {
    for_each_row(pool, rows, [=](int64_t r) {
        for (int64_t i = 0; i < n; i += kLanes) store(y + r * n + i, load(x + r * n + i, n - i) + load(b + i, n - i), n - i);
    });
}

template <class T>
void bias_gelu_of(ThreadPool& pool, int64_t rows, int64_t n, const T* x, const T* b, T* y) {
    for_each_row(pool, rows, [=](int64_t r) {
        for (int64_t i = 0; i < n; i += kLanes) {
            const Vec v = load(x + r * n + i, n - i) + load(b + i, n - i);
            store(y + r * n + i, v * gelu_share(v), n - i);
        }
    });
}

template <class T>
void bias_gelu_backward_of(ThreadPool& pool, int64_t rows, int64_t n, const T* dy, const T* x, const T* b, T* dx, float* db,
                           bool accumulate_db, void* workspace) {
    float* const sums = static_cast<float*>(workspace);  // [threads, padded(n)]
    pool.parallel([&](int thread, int threads) {
        float* const own = sums + thread * padded(n);
        std::fill(own, own + padded(n), 0.0f);
        const Range mine = split(rows, threads, thread);
        for (int64_t r = mine.begin; r < mine.end; ++r) {
            for (int64_t i = 0; i < n; i += kLanes) {
                const int64_t left = n - i;
                const Vec v = load(x + r * n + i, left) + load(b + i, left), s = gelu_share(v);
                const Vec slope = s + v * s * (1.0f - s) * kRoot * (1.0f + 3.0f * kCube * v * v);
                const Vec d = load(dy + r * n + i, left) * slope;
                store(own + i, load(own + i) + d);  // padded to whole vectors
                store(dx + r * n + i, d, left);
            }
        }
    });
    for (int64_t i = 0; i < n; ++i) {
        float total = accumulate_db ? db[i] : 0.0f;
        for (int t = 0; t < pool.threads(); ++t) total += sums[t * padded(n) + i];
        db[i] = total;
    }
}

template <class T>
void dropout_of(ThreadPool& pool, int64_t rows, int64_t n, const T* x, const DropoutMask& mask, T* y) {
    for_each_row(pool, rows, [=](int64_t r) {
        const RowBits bits(dropout_row(mask.stream, static_cast<uint32_t>(mask.noise[r])), mask.first_index);
        for (int64_t i = 0; i < n; i += kLanes)
            store(y + r * n + i, bits.keep(i, mask.threshold, load(x + r * n + i, n - i) * mask.scale), n - i);
    });
}

template <class S, class T>
void bias_dropout_add_of(ThreadPool& pool, int64_t rows, int64_t n, const S* x, const T* b, const S* residual,
                         const DropoutMask& mask, S* y) {
    if (!mask.noise) {
        for_each_row(pool, rows, [=](int64_t r) {
            for (int64_t i = 0; i < n; i += kLanes) {
                const int64_t at = r * n + i, left = n - i;
                store(y + at, load(residual + at, left) + (load(x + at, left) + load(b + i, left)), left);
            }
        });
        return;
    }
    for_each_row(pool, rows, [=](int64_t r) {
        const RowBits bits(dropout_row(mask.stream, static_cast<uint32_t>(mask.noise[r])), mask.first_index);
        for (int64_t i = 0; i < n; i += kLanes) {
            const int64_t at = r * n + i, left = n - i;
            const Vec kept = bits.keep(i, mask.threshold, (load(x + at, left) + load(b + i, left)) * mask.scale);
            store(y + at, load(residual + at, left) + kept, left);
        }
    });
}

template <class T>
void sum_rows_of(ThreadPool& pool, int64_t rows, int64_t n, const T* x, float* sum, bool accumulate) {
    pool.parallel([&](int thread, int threads) {
        const Range columns = split(n, threads, thread, 16);
        if (!accumulate) std::fill(sum + columns.begin, sum + columns.end, 0.0f);
        int64_t r = 0;
        const auto add = [&](int64_t count) {  // of `count` rows at once, so that the sums are touched less often
            for (int64_t i = columns.begin; i < columns.end; i += kLanes) {
                const int64_t left = columns.end - i;
                Vec total = load(sum + i, left);
                for (int64_t k = 0; k < count; ++k) total += load(x + (r + k) * n + i, left);
                store(sum + i, total, left);
            }
        };
        for (; r + 8 <= rows; r += 8) add(8);
        if (r < rows) add(rows - r);
    });
}

}  // namespace

constinit const Typed<Bias> bias([]<class T>() { return bias_of<T>; });
constinit const Typed<BiasGelu> bias_gelu([]<class T>() { return bias_gelu_of<T>; });
constinit const Typed<BiasGeluBackward> bias_gelu_backward([]<class T>() { return bias_gelu_backward_of<T>; });
constinit const Typed<Dropout> dropout([]<class T>() { return dropout_of<T>; });
constinit const TypedOnStream<BiasDropoutAdd> bias_dropout_add([]<class S, class T>() { return bias_dropout_add_of<S, T>; });
constinit const Typed<SumRows> sum_rows([]<class T>() { return sum_rows_of<T>; });

}  // namespace lockstep::kernels::cpu::LOCKSTEP_ISA
