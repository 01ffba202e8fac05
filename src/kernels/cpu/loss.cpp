// Compiled once per instruction set.
#include "kernels/cpu/loss.h"

#include <algorithm>
#include <limits>

#include "kernels/cpu/rows.h"
#include "kernels/cpu/simd.h"

namespace lockstep::kernels::cpu::LOCKSTEP_ISA {

RowMax row_max;
CrossEntropy cross_entropy;
extern const Typed<CrossEntropyBackward> cross_entropy_backward;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Column of the target in this shard, or -1.
int64_t target_column(int32_t target, int64_t first_id, int64_t n) {
    const int64_t column = target - first_id;
    return target < 0 || column < 0 || column >= n ? -1 : column;
}

template <class T>
void cross_entropy_backward_of(ThreadPool& pool, int64_t rows, int64_t n, const float* d_z, const float* d_t, const float* logits,
                               const float* m, const int32_t* targets, int64_t first_id, T* d_logits) {
    for_each_row(pool, rows, [=](int64_t r) {
        const float* x = logits + r * n;
        T* d = d_logits + r * n;
        const int64_t column = target_column(targets[r], first_id, n);
        const float target = column < 0 ? 0.0f : exp(splat(x[column] - m[r]))[0] * d_z[r] + d_t[r];  // before d overwrites x
        for (int64_t i = 0; i < n; i += kLanes) store(d + i, exp(load(x + i, n - i) - m[r]) * d_z[r], n - i);
        if (column >= 0) d[column] = T(target);
    });
}

}  // namespace

void row_max(ThreadPool& pool, int64_t rows, int64_t n, const float* logits, float* m) {
    for_each_row(pool, rows, [=](int64_t r) {
        const float* x = logits + r * n;
        Vec largest[4] = {splat(-kInfinity), splat(-kInfinity), splat(-kInfinity), splat(-kInfinity)};
        int64_t i = 0;
        for (; i + 4 * kLanes <= n; i += 4 * kLanes)
            for (int j = 0; j < 4; ++j) largest[j] = maximum(load(x + i + j * kLanes), largest[j]);
        float rest = -kInfinity;
        for (; i < n; ++i) rest = std::max(rest, x[i]);
        m[r] = std::max(rest, maximum(maximum(maximum(largest[0], largest[1]), maximum(largest[2], largest[3]))));
    });
}

void cross_entropy(ThreadPool& pool, int64_t rows, int64_t n, const float* logits, const float* m, const int32_t* targets,
                   int64_t first_id, float* z, float* t) {
    for_each_row(pool, rows, [=](int64_t r) {
        const float* x = logits + r * n;
        Vec total[2] = {};
        int64_t i = 0;
        for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
            total[0] += exp(load(x + i) - m[r]);
            total[1] += exp(load(x + i + kLanes) - m[r]);
        }
        float sums = sum(total[0] + total[1]);
        for (; i < n; ++i) sums += exp(splat(x[i] - m[r]))[0];
        z[r] = sums;
        const int64_t column = target_column(targets[r], first_id, n);
        t[r] = column < 0 ? 0.0f : x[column];
    });
}

constinit const Typed<CrossEntropyBackward> cross_entropy_backward([]<class T>() { return cross_entropy_backward_of<T>; });

}  // namespace lockstep::kernels::cpu::LOCKSTEP_ISA
