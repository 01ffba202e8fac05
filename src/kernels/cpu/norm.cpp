// Compiled once per instruction set.
#include "kernels/cpu/norm.h"

#include <algorithm>

#include "kernels/cpu/simd.h"

namespace lockstep::kernels::cpu::LOCKSTEP_ISA {

extern const Typed<RmsNorm> rms_norm;
extern const Typed<RmsNormBackward> rms_norm_backward;

namespace {

int64_t padded(int64_t n) { return (n + 15) / 16 * 16; }

template <class T>
float sum_of_squares(const T* x, int64_t n) {
    Vec total[2] = {};
    int64_t i = 0;
    for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
        const Vec a = load(x + i), b = load(x + i + kLanes);
        total[0] += a * a;
        total[1] += b * b;
    }
    for (; i < n; i += kLanes) {
        const Vec a = load(x + i, n - i);
        total[0] += a * a;
    }
    return sum(total[0] + total[1]);
}

// With g = dy * w and xn = x * rstd: dx = rstd * (g - xn * mean(g * xn)), dw += dy * xn.
template <class T>
void backward_row(int64_t n, const T* dy, const T* x, const T* w, float rstd, T* dx, float* dw) {
    Vec total{};
    for (int64_t i = 0; i < n; i += kLanes) total += load(dy + i, n - i) * load(w + i, n - i) * load(x + i, n - i);
    const float mean = sum(total) * rstd / static_cast<float>(n);
    for (int64_t i = 0; i < n; i += kLanes) {
        const int64_t left = n - i;
        const Vec grad = load(dy + i, left), normal = load(x + i, left) * rstd;
        store(dw + i, load(dw + i) + grad * normal);  // dw is padded to whole vectors
        store(dx + i, (grad * load(w + i, left) - normal * mean) * rstd, left);
    }
}

template <class T>
void rms_norm_of(ThreadPool& pool, int64_t rows, int64_t n, const T* x, const T* w, float eps, T* y, float* rstd) {
    pool.parallel([&](int thread, int threads) {
        const Range mine = split(rows, threads, thread);
        for (int64_t r = mine.begin; r < mine.end; ++r) {
            const T* from = x + r * n;
            T* to = y + r * n;
            const float factor = 1.0f / std::sqrt(sum_of_squares(from, n) / static_cast<float>(n) + eps);
            rstd[r] = factor;
            for (int64_t i = 0; i < n; i += kLanes) store(to + i, load(from + i, n - i) * factor * load(w + i, n - i), n - i);
        }
    });
}

template <class T>
void rms_norm_backward_of(ThreadPool& pool, int64_t rows, int64_t n, const T* dy, const T* x, const T* w, const float* rstd,
                          T* dx, float* dw, bool accumulate_dw, void* workspace) {
    float* const sums = static_cast<float*>(workspace);  // [threads, padded(n)]
    pool.parallel([&](int thread, int threads) {
        float* const own = sums + thread * padded(n);
        std::fill(own, own + padded(n), 0.0f);
        const Range mine = split(rows, threads, thread);
        for (int64_t r = mine.begin; r < mine.end; ++r) backward_row(n, dy + r * n, x + r * n, w, rstd[r], dx + r * n, own);
    });
    for (int64_t i = 0; i < n; ++i) {
        float total = accumulate_dw ? dw[i] : 0.0f;
        for (int t = 0; t < pool.threads(); ++t) total += sums[t * padded(n) + i];
        dw[i] = total;
    }
}

}  // namespace

constinit const Typed<RmsNorm> rms_norm{rms_norm_of<float>, rms_norm_of<Bf16>};
constinit const Typed<RmsNormBackward> rms_norm_backward{rms_norm_backward_of<float>, rms_norm_backward_of<Bf16>};

}  // namespace lockstep::kernels::cpu::LOCKSTEP_ISA
