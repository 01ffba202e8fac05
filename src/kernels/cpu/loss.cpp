// Compiled once per instruction set.
#include "kernels/cpu/loss.h"

#include <algorithm>
#include <limits>

#include "kernels/cpu/rows.h"
#include "kernels/cpu/simd.h"

namespace lockstep::kernels::cpu::LOCKSTEP_ISA {

extern const Typed<RowMax> row_max;
extern const Typed<CrossEntropy> cross_entropy;
extern const TypedOnStream<CrossEntropyBackward> cross_entropy_backward;
extern const TypedOnStream<CrossEntropyGradient> cross_entropy_gradient;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Column of the target in this shard, or -1.
int64_t target_column(int32_t target, int64_t first_id, int64_t n) {
    const int64_t column = target - first_id;
    return target < 0 || column < 0 || column >= n ? -1 : column;
}

// Of a row of n logits.
template <class T>
float largest_of(const T* x, int64_t n) {
    Vec largest[4] = {splat(-kInfinity), splat(-kInfinity), splat(-kInfinity), splat(-kInfinity)};
    int64_t i = 0;
    for (; i + 4 * kLanes <= n; i += 4 * kLanes)
        for (int j = 0; j < 4; ++j) largest[j] = maximum(load(x + i + j * kLanes), largest[j]);
    float rest = -kInfinity;
    for (; i < n; ++i) rest = std::max(rest, static_cast<float>(x[i]));
    return std::max(rest, maximum(maximum(maximum(largest[0], largest[1]), maximum(largest[2], largest[3]))));
}
template <class T>
float sum_of_exp(const T* x, int64_t n, float m) {
    Vec total[2] = {};
    int64_t i = 0;
    for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
        total[0] += exp(load(x + i) - m);
        total[1] += exp(load(x + i + kLanes) - m);
    }
    float sums = sum(total[0] + total[1]);
    for (; i < n; ++i) sums += exp(splat(static_cast<float>(x[i]) - m))[0];
    return sums;
}
template <class S, class T>
void gradient_of(const S* x, int64_t n, float m, int64_t column, float d_z, float d_t, T* d) {
    const float target =
        column < 0 ? 0.0f : exp(splat(static_cast<float>(x[column]) - m))[0] * d_z + d_t;  // before d overwrites x
    for (int64_t i = 0; i < n; i += kLanes) store(d + i, exp(load(x + i, n - i) - m) * d_z, n - i);
    if (column >= 0) d[column] = T(target);
}

template <class S, class T>
void cross_entropy_backward_of(ThreadPool& pool, int64_t rows, int64_t n, const float* d_z, const float* d_t, const S* logits,
                               const float* m, const int32_t* targets, int64_t first_id, T* d_logits) {
    for_each_row(pool, rows, [=](int64_t r) {
        gradient_of(logits + r * n, n, m[r], target_column(targets[r], first_id, n), d_z[r], d_t[r], d_logits + r * n);
    });
}

template <class S, class T>
void cross_entropy_gradient_of(ThreadPool& pool, int64_t rows, int64_t n, const float* d_nll, const float* d_t, const S* logits,
                               const int32_t* targets, float* m, float* z, float* t, T* d_logits) {
    for_each_row(pool, rows, [=](int64_t r) {
        const S* x = logits + r * n;
        const int64_t column = target_column(targets[r], 0, n);
        m[r] = largest_of(x, n), z[r] = sum_of_exp(x, n, m[r]), t[r] = column < 0 ? 0.0f : static_cast<float>(x[column]);
        gradient_of(x, n, m[r], column, d_nll[r] * (1.0f / z[r]), d_t[r], d_logits + r * n);
    });
}

template <class T>
void row_max_of(ThreadPool& pool, int64_t rows, int64_t n, const T* logits, float* m) {
    for_each_row(pool, rows, [=](int64_t r) { m[r] = largest_of(logits + r * n, n); });
}

template <class T>
void cross_entropy_of(ThreadPool& pool, int64_t rows, int64_t n, const T* logits, const float* m, const int32_t* targets,
                      int64_t first_id, float* z, float* t) {
    for_each_row(pool, rows, [=](int64_t r) {
        z[r] = sum_of_exp(logits + r * n, n, m[r]);
        const int64_t column = target_column(targets[r], first_id, n);
        t[r] = column < 0 ? 0.0f : static_cast<float>(logits[r * n + column]);
    });
}

}  // namespace

constinit const Typed<RowMax> row_max([]<class T>() { return row_max_of<T>; });
constinit const Typed<CrossEntropy> cross_entropy([]<class T>() { return cross_entropy_of<T>; });
constinit const TypedOnStream<CrossEntropyBackward> cross_entropy_backward([]<class S, class T>() {
    return cross_entropy_backward_of<S, T>;
});
constinit const TypedOnStream<CrossEntropyGradient> cross_entropy_gradient([]<class S, class T>() {
    return cross_entropy_gradient_of<S, T>;
});

}  // namespace lockstep::kernels::cpu::LOCKSTEP_ISA
