// LayerNorm, biases with GELU and dropout, and sums of rows against plain loops in double, with every number of threads from 1 to
// 3 and both for the chosen and the baseline instruction set.
#include "kernels/cpu/bias.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <random>

#include "base/random.h"
#include "kernels/cpu/norm.h"
#include "tests/kernels/cpu_data.h"

namespace lockstep::kernels::cpu {

namespace baseline {
extern const TypedNorm<LayerNorm> layer_norm;
extern const TypedNormBackward<LayerNormBackward> layer_norm_backward;
extern const Typed<Bias> bias;
extern const Typed<BiasGelu> bias_gelu;
extern const Typed<BiasGeluBackward> bias_gelu_backward;
extern const Typed<Dropout> dropout;
extern const TypedOnStream<BiasDropoutAdd> bias_dropout_add;
extern const Typed<SumRows> sum_rows;
}  // namespace baseline

namespace {

using Floats = std::vector<float>;
using Doubles = std::vector<double>;

void expect_near(const Doubles& want, const Floats& got, double tolerance) {
    ASSERT_EQ(want.size(), got.size());
    double worst = 0;
    for (size_t i = 0; i < got.size(); ++i) {
        const double error = std::abs(want[i] - got[i]) / (1 + std::abs(want[i]));
        worst = error <= worst ? worst : error;  // keeps NaN
    }
    EXPECT_LT(worst, tolerance);
}

// Calls test(pool, rows, n) for pools of 1 to 3 threads and some shapes.
template <typename Test>
void with_shapes(const Test& test) {
    for (int threads : {1, 2, 3}) {
        ThreadPool pool(threads);
        for (const auto& [rows, n] : std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {5, 64}, {7, 77}, {33, 512}, {2, 19}}) {
            SCOPED_TRACE(::testing::Message() << threads << " threads, " << rows << " x " << n);
            test(pool, rows, n);
        }
    }
}

double gelu(double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x))); }

TEST(CpuLayerNorm, ForwardAndBackward) {
    std::mt19937 rng(1);
    with_shapes([&](ThreadPool& pool, int64_t rows, int64_t n) {
        Floats x = random_floats(rng, rows * n);
        for (float& v : x) v += 3;  // a mean that matters
        const Floats w = random_floats(rng, n), b = random_floats(rng, n), dy = random_floats(rng, rows * n);
        const double eps = 1e-3;
        Doubles y(x.size()), mean(rows), rstd(rows), dx(x.size()), dw(n, 2.0), db(n);
        for (int64_t r = 0; r < rows; ++r) {
            double squares = 0, g = 0, gx = 0;
            for (int64_t i = 0; i < n; ++i) mean[r] += double{x[r * n + i]} / n;
            for (int64_t i = 0; i < n; ++i) squares += std::pow(x[r * n + i] - mean[r], 2) / n;
            rstd[r] = 1 / std::sqrt(squares + eps);
            for (int64_t i = 0; i < n; ++i) g += double{dy[r * n + i]} * w[i] / n;
            for (int64_t i = 0; i < n; ++i) gx += double{dy[r * n + i]} * w[i] * (x[r * n + i] - mean[r]) * rstd[r] / n;
            for (int64_t i = 0; i < n; ++i) {
                const double normal = (x[r * n + i] - mean[r]) * rstd[r];
                y[r * n + i] = normal * w[i] + b[i];
                dx[r * n + i] = rstd[r] * (double{dy[r * n + i]} * w[i] - g - normal * gx);
                dw[i] += dy[r * n + i] * normal, db[i] += dy[r * n + i];
            }
        }
        for (const auto& [forward, backward] :
             {std::pair{layer_norm, layer_norm_backward}, std::pair{baseline::layer_norm, baseline::layer_norm_backward}}) {
            Floats got = x, got_mean(rows), got_rstd(rows), got_dx = dy, got_dw(n, 2.0f), got_db(n, 9.0f);
            forward(pool, rows, n, got.data(), w.data(), b.data(), static_cast<float>(eps), got.data(), got_mean.data(),
                    got_rstd.data());
            Floats workspace(layer_norm_backward_workspace_bytes(n, pool.threads()) / 4);
            backward(pool, rows, n, got_dx.data(), x.data(), w.data(), got_mean.data(), got_rstd.data(), nullptr, got_dx.data(),
                     got_dw.data(), true, got_db.data(), workspace.data());
            expect_near(y, got, 5e-6);
            expect_near(mean, got_mean, 2e-6);
            expect_near(rstd, got_rstd, 2e-6);
            expect_near(dx, got_dx, 2e-5);
            expect_near(dw, got_dw, 1e-5);
            expect_near(db, got_db, 1e-5);
        }
    });
}

TEST(CpuBias, GeluAndItsGradients) {
    std::mt19937 rng(2);
    with_shapes([&](ThreadPool& pool, int64_t rows, int64_t n) {
        const Floats x = random_floats(rng, rows * n), b = random_floats(rng, n), dy = random_floats(rng, rows * n);
        Doubles sum(x.size()), y(x.size()), dx(x.size()), db(n, 2.0);
        for (size_t i = 0; i < x.size(); ++i) {
            const double v = sum[i] = double{x[i]} + b[i % n], step = 1e-6;
            y[i] = gelu(v);
            dx[i] = dy[i] * (gelu(v + step) - gelu(v - step)) / (2 * step);
            db[i % n] += dx[i];
        }
        for (const auto& [add, forward, backward] :
             {std::tuple{bias, bias_gelu, bias_gelu_backward},
              std::tuple{baseline::bias, baseline::bias_gelu, baseline::bias_gelu_backward}}) {
            Floats got_sum = x, got = x, got_dx = dy, got_db(n, 2.0f);
            add(pool, rows, n, got_sum.data(), b.data(), got_sum.data());
            forward(pool, rows, n, got.data(), b.data(), got.data());
            Floats workspace(row_sums_workspace_bytes(n, pool.threads()) / 4);
            backward(pool, rows, n, got_dx.data(), x.data(), b.data(), got_dx.data(), got_db.data(), true, workspace.data());
            expect_near(sum, got_sum, 1e-6);
            expect_near(y, got, 2e-6);
            expect_near(dx, got_dx, 5e-6);
            expect_near(db, got_db, 1e-5);
        }
    });
}

TEST(CpuBias, GeluOfLargeAndSpecialValues) {
    ThreadPool pool(1);
    const Floats x = {-1e30f, -50, 50, 1e30f, NAN, -0.0f}, b(x.size(), 0.0f);
    Floats y(x.size());
    bias_gelu(pool, 1, static_cast<int64_t>(x.size()), x.data(), b.data(), y.data());
    EXPECT_EQ(y[1], 0);
    EXPECT_EQ(y[2], 50);
    EXPECT_EQ(y[3], 1e30f);
    EXPECT_TRUE(std::isnan(y[4]));
    EXPECT_EQ(y[5], 0);
}

TEST(CpuBias, DropoutDropsWhatItsBitsSay) {
    std::mt19937 rng(3);
    with_shapes([&](ThreadPool& pool, int64_t rows, int64_t n) {
        const Floats x = random_floats(rng, rows * n), b = random_floats(rng, n), residual = random_floats(rng, rows * n);
        std::vector<int32_t> noise(rows);
        for (int32_t& v : noise) v = static_cast<int32_t>(rng());
        const DropoutMask mask{noise.data(), dropout_stream(11, 4), dropout_threshold(0.3), 5, static_cast<float>(1 / 0.7)};
        Doubles dropped(x.size()), sum(x.size()), kept(x.size());
        for (size_t i = 0; i < x.size(); ++i) {
            const int64_t r = static_cast<int64_t>(i) / n, c = static_cast<int64_t>(i) % n;
            const uint64_t row = dropout_row(mask.stream, static_cast<uint32_t>(noise[r]));
            const bool keep = dropout_bits(row, static_cast<uint32_t>(5 + c)) >= mask.threshold;
            dropped[i] = keep ? x[i] / 0.7 : 0;
            sum[i] = residual[i] + (keep ? (double{x[i]} + b[c]) / 0.7 : 0);
            kept[i] = residual[i] + (double{x[i]} + b[c]);
        }
        for (const auto& [drop, add] :
             {std::pair{dropout, bias_dropout_add}, std::pair{baseline::dropout, baseline::bias_dropout_add}}) {
            Floats got = x, got_sum = residual, got_kept = x;
            drop(pool, rows, n, got.data(), mask, got.data());
            add(pool, rows, n, x.data(), b.data(), got_sum.data(), mask, got_sum.data());
            add(pool, rows, n, got_kept.data(), b.data(), residual.data(), {}, got_kept.data());
            expect_near(dropped, got, 1e-6);
            expect_near(sum, got_sum, 1e-6);
            expect_near(kept, got_kept, 1e-6);
        }
    });
}

TEST(CpuBias, SumsOfRowsDoNotDependOnThreads) {
    std::mt19937 rng(4);
    with_shapes([&](ThreadPool& pool, int64_t rows, int64_t n) {
        const Floats x = random_floats(rng, rows * n);
        Doubles want(n, 2.0);
        for (size_t i = 0; i < x.size(); ++i) want[i % n] += x[i];
        ThreadPool one(1);
        for (const auto& sum : {sum_rows, baseline::sum_rows}) {
            Floats got(n, 2.0f), single(n, 2.0f);
            sum(pool, rows, n, x.data(), got.data(), true);
            sum(one, rows, n, x.data(), single.data(), true);
            expect_near(want, got, 5e-6);
            EXPECT_EQ(single, got);
            sum(pool, rows, n, x.data(), got.data(), false);
            for (double& v : want) v -= 2;
            expect_near(want, got, 5e-6);
            for (double& v : want) v += 2;
        }
    });
}

}  // namespace
}  // namespace lockstep::kernels::cpu
