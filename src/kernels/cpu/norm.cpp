// Compiled once per instruction set.
#include "kernels/cpu/norm.h"

#include <algorithm>

#include "kernels/cpu/rows.h"
#include "kernels/cpu/simd.h"

namespace lockstep::kernels::cpu::LOCKSTEP_ISA {

extern const TypedNorm<RmsNorm> rms_norm;
extern const TypedNorm<AddRmsNorm> add_rms_norm;
extern const TypedNormBackward<RmsNormBackward> rms_norm_backward;
extern const TypedNorm<LayerNorm> layer_norm;
extern const TypedNormBackward<LayerNormBackward> layer_norm_backward;

namespace {

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
template <class S, class W>
void backward_row(int64_t n, const S* dy, const S* x, const W* w, float rstd, const S* also, S* dx, float* dw) {
    Vec total{};
    for (int64_t i = 0; i < n; i += kLanes) total += load(dy + i, n - i) * load(w + i, n - i) * load(x + i, n - i);
    const float mean = sum(total) * rstd / static_cast<float>(n);
    for (int64_t i = 0; i < n; i += kLanes) {
        const int64_t left = n - i;
        const Vec grad = load(dy + i, left), normal = load(x + i, left) * rstd;
        store(dw + i, load(dw + i) + grad * normal);  // dw is padded to whole vectors
        const Vec d = (grad * load(w + i, left) - normal * mean) * rstd;
        store(dx + i, also ? d + load(also + i, left) : d, left);
    }
}

template <class S, class T, class W>
float rms_norm_row(int64_t n, const S* x, const W* w, float eps, T* y) {  // returns rstd
    const float factor = 1.0f / std::sqrt(sum_of_squares(x, n) / static_cast<float>(n) + eps);
    for (int64_t i = 0; i < n; i += kLanes) store(y + i, load(x + i, n - i) * factor * load(w + i, n - i), n - i);
    return factor;
}

template <class S, class T, class W>
void rms_norm_of(ThreadPool& pool, int64_t rows, int64_t n, const S* x, const W* w, float eps, T* y, float* rstd) {
    for_each_row(pool, rows, [=](int64_t r) { rstd[r] = rms_norm_row(n, x + r * n, w, eps, y + r * n); });
}

template <class S, class T, class W>
void add_rms_norm_of(ThreadPool& pool, int64_t rows, int64_t n, const S* x, const S* residual, const W* w, float eps, S* s, T* y,
                     float* rstd) {
    for_each_row(pool, rows, [=](int64_t r) {
        for (int64_t i = r * n; i < (r + 1) * n; i += kLanes) {
            const int64_t left = (r + 1) * n - i;
            store(s + i, load(x + i, left) + load(residual + i, left), left);
        }
        rstd[r] = rms_norm_row(n, s + r * n, w, eps, y + r * n);
    });
}

template <class S, class W>
void rms_norm_backward_of(ThreadPool& pool, int64_t rows, int64_t n, const S* dy, const S* x, const W* w, const float* rstd,
                          const S* also, S* dx, float* dw, bool accumulate_dw, void* workspace) {
    float* const sums = static_cast<float*>(workspace);  // [threads, padded(n)]
    pool.parallel([&](int thread, int threads) {
        float* const own = sums + thread * padded(n);
        std::fill(own, own + padded(n), 0.0f);
        const Range mine = split(rows, threads, thread);
        for (int64_t r = mine.begin; r < mine.end; ++r)
            backward_row(n, dy + r * n, x + r * n, w, rstd[r], also ? also + r * n : nullptr, dx + r * n, own);
    });
    for (int64_t i = 0; i < n; ++i) {
        float total = accumulate_dw ? dw[i] : 0.0f;
        for (int t = 0; t < pool.threads(); ++t) total += sums[t * padded(n) + i];
        dw[i] = total;
    }
}

template <class T>
float sum_of(const T* x, int64_t n) {
    Vec total[2] = {};
    int64_t i = 0;
    for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
        total[0] += load(x + i);
        total[1] += load(x + i + kLanes);
    }
    for (; i < n; i += kLanes) total[0] += load(x + i, n - i);
    return sum(total[0] + total[1]);
}

// Of (x - mean)^2. Lanes past the end would count mean^2 each.
template <class T>
float sum_of_squares_around(const T* x, int64_t n, float mean) {
    Vec total{};
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
        const Vec c = load(x + i) - mean;
        total += c * c;
    }
    float rest = 0;
    for (; i < n; ++i) rest += (static_cast<float>(x[i]) - mean) * (static_cast<float>(x[i]) - mean);
    return sum(total) + rest;
}

template <class S, class T, class W>
void layer_norm_of(ThreadPool& pool, int64_t rows, int64_t n, const S* x, const W* w, const W* b, float eps, T* y, float* mean,
                   float* rstd) {
    pool.parallel([&](int thread, int threads) {
        const Range mine = split(rows, threads, thread);
        for (int64_t r = mine.begin; r < mine.end; ++r) {
            const S* from = x + r * n;
            const float middle = sum_of(from, n) / static_cast<float>(n);
            const float factor = 1.0f / std::sqrt(sum_of_squares_around(from, n, middle) / static_cast<float>(n) + eps);
            mean[r] = middle, rstd[r] = factor;
            for (int64_t i = 0; i < n; i += kLanes) {
                const Vec normal = (load(from + i, n - i) - middle) * factor;
                store(y + r * n + i, normal * load(w + i, n - i) + load(b + i, n - i), n - i);
            }
        }
    });
}

// With g = dy * w and xn = (x - mean) * rstd: dx = rstd * (g - mean(g) - xn * mean(g * xn)), dw += dy * xn, db += dy.
template <class S, class W>
void layer_norm_row(int64_t n, const S* dy, const S* x, const W* w, float mean, float rstd, const S* also, S* dx, float* dw,
                    float* db) {
    Vec total{}, with_x{};
    for (int64_t i = 0; i < n; i += kLanes) {
        const Vec g = load(dy + i, n - i) * load(w + i, n - i);
        total += g;
        with_x += g * (load(x + i, n - i) - mean);  // past the end g is zero
    }
    const float mean_g = sum(total) / static_cast<float>(n), mean_gx = sum(with_x) * rstd / static_cast<float>(n);
    for (int64_t i = 0; i < n; i += kLanes) {
        const int64_t left = n - i;
        const Vec grad = load(dy + i, left), normal = (load(x + i, left) - mean) * rstd;
        store(dw + i, load(dw + i) + grad * normal);  // dw and db are padded to whole vectors
        store(db + i, load(db + i) + grad);
        const Vec d = (grad * load(w + i, left) - mean_g - normal * mean_gx) * rstd;
        store(dx + i, also ? d + load(also + i, left) : d, left);
    }
}

template <class S, class W>
void layer_norm_backward_of(ThreadPool& pool, int64_t rows, int64_t n, const S* dy, const S* x, const W* w, const float* mean,
                            const float* rstd, const S* also, S* dx, float* dw, bool accumulate_dw, float* db, void* workspace) {
    float* const sums = static_cast<float*>(workspace);  // [threads, 2, padded(n)]
    pool.parallel([&](int thread, int threads) {
        float* const own = sums + 2 * thread * padded(n);
        std::fill(own, own + 2 * padded(n), 0.0f);
        const Range mine = split(rows, threads, thread);
        for (int64_t r = mine.begin; r < mine.end; ++r)
            layer_norm_row(n, dy + r * n, x + r * n, w, mean[r], rstd[r], also ? also + r * n : nullptr, dx + r * n, own,
                           own + padded(n));
    });
    for (int64_t i = 0; i < n; ++i) {
        float of_w = accumulate_dw ? dw[i] : 0.0f, of_b = 0;
        for (int t = 0; t < pool.threads(); ++t) {
            of_w += sums[2 * t * padded(n) + i];
            of_b += sums[(2 * t + 1) * padded(n) + i];
        }
        dw[i] = of_w, db[i] = of_b;
    }
}

}  // namespace

constinit const TypedNorm<RmsNorm> rms_norm([]<class S, class T, class W>() { return rms_norm_of<S, T, W>; });
constinit const TypedNorm<AddRmsNorm> add_rms_norm([]<class S, class T, class W>() { return add_rms_norm_of<S, T, W>; });
constinit const TypedNormBackward<RmsNormBackward> rms_norm_backward([]<class S, class W>() {
    return rms_norm_backward_of<S, W>;
});
constinit const TypedNorm<LayerNorm> layer_norm([]<class S, class T, class W>() { return layer_norm_of<S, T, W>; });
constinit const TypedNormBackward<LayerNormBackward> layer_norm_backward([]<class S, class W>() {
    return layer_norm_backward_of<S, W>;
});

}  // namespace lockstep::kernels::cpu::LOCKSTEP_ISA
