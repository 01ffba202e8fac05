// The copies of kernels that read or write a residual stream of float, or weights of norms of float, beside bfloat16, against
// their copies for float alone, which other tests hold to plain loops: the same numbers, and what is bfloat16 is rounded once.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/random.h"
#include "kernels/cpu/bias.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/matmul.h"
#include "kernels/cpu/norm.h"
#include "tests/kernels/cpu_data.h"

namespace lockstep::kernels::cpu {

namespace baseline {
extern const TypedNorm<RmsNorm> rms_norm;
extern const TypedNorm<AddRmsNorm> add_rms_norm;
extern const TypedNormBackward<RmsNormBackward> rms_norm_backward;
extern const TypedNorm<LayerNorm> layer_norm;
extern const TypedNormBackward<LayerNormBackward> layer_norm_backward;
extern const TypedOnStream<BiasDropoutAdd> bias_dropout_add;
extern const TypedOnStream<Embedding> embedding;
}  // namespace baseline

namespace {

using Floats = std::vector<float>;
using Halves = std::vector<Bf16>;

// The same numbers as bfloat16 and as float.
struct Both {
    Halves half;
    Floats wide;
    Both(std::mt19937& rng, int64_t n) : wide(random_floats(rng, n)) {
        for (float& x : wide) half.emplace_back(x), x = static_cast<float>(half.back());
    }
};

void expect_alike(const Floats& want, const Floats& got) {
    ASSERT_EQ(want.size(), got.size());
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], 2e-6 * (1 + std::abs(want[i]))) << i;
}
void expect_rounded(const Floats& want, const Halves& got) {
    ASSERT_EQ(want.size(), got.size());
    for (size_t i = 0; i < got.size(); ++i)
        ASSERT_NEAR(static_cast<float>(got[i]), want[i], 0x1.01p-8 * std::abs(want[i]) + 1e-6) << i;
}

// Calls test(pool, rows, n) for pools of 1 and 2 threads and some shapes.
template <typename Test>
void with_wide_shapes(const Test& test) {
    for (int threads : {1, 2}) {
        ThreadPool pool(threads);
        for (const auto& [rows, n] : std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {5, 64}, {7, 77}, {2, 19}}) {
            SCOPED_TRACE(::testing::Message() << threads << " threads, " << rows << " x " << n);
            test(pool, rows, n);
        }
    }
}

constexpr float kEps = 1e-5f;

TEST(CpuWideStream, RmsNormAndItsGradients) {
    std::mt19937 rng(1);
    with_wide_shapes([&](ThreadPool& pool, int64_t rows, int64_t n) {
        const Floats x = random_floats(rng, rows * n), more = random_floats(rng, rows * n), dy = random_floats(rng, rows * n);
        const Both w(rng, n);
        for (const auto& [norm, add_norm, backward] :
             {std::tuple{rms_norm, add_rms_norm, rms_norm_backward},
              std::tuple{baseline::rms_norm, baseline::add_rms_norm, baseline::rms_norm_backward}}) {
            Floats y(x.size()), rstd(rows), got_rstd(rows);
            Halves got(x.size());
            norm(pool, rows, n, x.data(), w.wide.data(), kEps, y.data(), rstd.data());
            norm(pool, rows, n, x.data(), w.half.data(), kEps, got.data(), got_rstd.data());
            expect_rounded(y, got);
            expect_alike(rstd, got_rstd);

            Floats sum(x.size()), got_sum = x;  // in place
            add_norm(pool, rows, n, x.data(), more.data(), w.wide.data(), kEps, sum.data(), y.data(), rstd.data());
            add_norm(pool, rows, n, got_sum.data(), more.data(), w.half.data(), kEps, got_sum.data(), got.data(),
                     got_rstd.data());
            EXPECT_EQ(sum, got_sum);
            expect_rounded(y, got);
            expect_alike(rstd, got_rstd);

            Floats dx(x.size()), dw(n, 2.0f), got_dx = more, got_dw(n, 2.0f),
                                              workspace(rms_norm_backward_workspace_bytes(n, pool.threads()) / 4);
            backward(pool, rows, n, dy.data(), x.data(), w.wide.data(), rstd.data(), more.data(), dx.data(), dw.data(), true,
                     workspace.data());
            backward(pool, rows, n, dy.data(), x.data(), w.half.data(), rstd.data(), got_dx.data(), got_dx.data(), got_dw.data(),
                     true, workspace.data());
            expect_alike(dx, got_dx);
            expect_alike(dw, got_dw);

            // Weights of float: the same numbers written as bfloat16, with the stream in either type.
            const Both stream(rng, rows * n), also(rng, rows * n);
            const Floats weights = random_floats(rng, n);
            norm(pool, rows, n, stream.wide.data(), weights.data(), kEps, y.data(), rstd.data());
            norm(pool, rows, n, stream.half.data(), weights.data(), kEps, got.data(), got_rstd.data());
            expect_rounded(y, got);
            expect_alike(rstd, got_rstd);
            norm(pool, rows, n, stream.wide.data(), weights.data(), kEps, got.data(), got_rstd.data());
            expect_rounded(y, got);
            add_norm(pool, rows, n, x.data(), more.data(), weights.data(), kEps, sum.data(), y.data(), rstd.data());
            add_norm(pool, rows, n, x.data(), more.data(), weights.data(), kEps, got_sum.data(), got.data(), got_rstd.data());
            EXPECT_EQ(sum, got_sum);
            expect_rounded(y, got);
            Halves half_sum(x.size());
            add_norm(pool, rows, n, stream.half.data(), also.half.data(), weights.data(), kEps, half_sum.data(), got.data(),
                     got_rstd.data());
            Floats rounded(half_sum.begin(), half_sum.end());  // what is normed is what is stored
            norm(pool, rows, n, rounded.data(), weights.data(), kEps, y.data(), rstd.data());
            expect_rounded(y, got);
            expect_alike(rstd, got_rstd);

            Halves half_dx(x.size());
            got_dw = dw = Floats(n, 2.0f);
            backward(pool, rows, n, also.wide.data(), stream.wide.data(), weights.data(), rstd.data(), stream.wide.data(),
                     dx.data(), dw.data(), true, workspace.data());
            backward(pool, rows, n, also.half.data(), stream.half.data(), weights.data(), rstd.data(), stream.half.data(),
                     half_dx.data(), got_dw.data(), true, workspace.data());
            expect_rounded(dx, half_dx);
            expect_alike(dw, got_dw);
        }
    });
}

TEST(CpuWideStream, LayerNormAndItsGradients) {
    std::mt19937 rng(2);
    with_wide_shapes([&](ThreadPool& pool, int64_t rows, int64_t n) {
        const Floats x = random_floats(rng, rows * n), more = random_floats(rng, rows * n), dy = random_floats(rng, rows * n);
        const Both w(rng, n), b(rng, n);
        for (const auto& [norm, backward] :
             {std::pair{layer_norm, layer_norm_backward}, std::pair{baseline::layer_norm, baseline::layer_norm_backward}}) {
            Floats y(x.size()), mean(rows), rstd(rows), got_mean(rows), got_rstd(rows);
            Halves got(x.size());
            norm(pool, rows, n, x.data(), w.wide.data(), b.wide.data(), kEps, y.data(), mean.data(), rstd.data());
            norm(pool, rows, n, x.data(), w.half.data(), b.half.data(), kEps, got.data(), got_mean.data(), got_rstd.data());
            expect_rounded(y, got);
            expect_alike(mean, got_mean);
            expect_alike(rstd, got_rstd);

            Floats dx(x.size()), dw(n, 2.0f), db(n), got_dx = more, got_dw(n, 2.0f), got_db(n),
                                                     workspace(layer_norm_backward_workspace_bytes(n, pool.threads()) / 4);
            backward(pool, rows, n, dy.data(), x.data(), w.wide.data(), mean.data(), rstd.data(), more.data(), dx.data(),
                     dw.data(), true, db.data(), workspace.data());
            backward(pool, rows, n, dy.data(), x.data(), w.half.data(), mean.data(), rstd.data(), got_dx.data(), got_dx.data(),
                     got_dw.data(), true, got_db.data(), workspace.data());
            expect_alike(dx, got_dx);
            expect_alike(dw, got_dw);
            expect_alike(db, got_db);

            const Both stream(rng, rows * n), also(rng, rows * n);
            const Floats weights = random_floats(rng, n), bias = random_floats(rng, n);
            norm(pool, rows, n, stream.wide.data(), weights.data(), bias.data(), kEps, y.data(), mean.data(), rstd.data());
            norm(pool, rows, n, stream.half.data(), weights.data(), bias.data(), kEps, got.data(), got_mean.data(),
                 got_rstd.data());
            expect_rounded(y, got);
            expect_alike(rstd, got_rstd);
            norm(pool, rows, n, stream.wide.data(), weights.data(), bias.data(), kEps, got.data(), got_mean.data(),
                 got_rstd.data());
            expect_rounded(y, got);
            Halves half_dx(x.size());
            got_dw = dw = Floats(n, 2.0f);
            backward(pool, rows, n, also.wide.data(), stream.wide.data(), weights.data(), mean.data(), rstd.data(),
                     stream.wide.data(), dx.data(), dw.data(), true, db.data(), workspace.data());
            backward(pool, rows, n, also.half.data(), stream.half.data(), weights.data(), mean.data(), rstd.data(),
                     stream.half.data(), half_dx.data(), got_dw.data(), true, got_db.data(), workspace.data());
            expect_rounded(dx, half_dx);
            expect_alike(dw, got_dw);
            expect_alike(db, got_db);
        }
    });
}

TEST(CpuWideStream, BiasDropoutAdd) {
    std::mt19937 rng(3);
    with_wide_shapes([&](ThreadPool& pool, int64_t rows, int64_t n) {
        const Floats x = random_floats(rng, rows * n), residual = random_floats(rng, rows * n);
        const Both b(rng, n);
        std::vector<int32_t> noise(rows);
        for (int32_t& v : noise) v = static_cast<int32_t>(rng());
        const DropoutMask drops{noise.data(), dropout_stream(11, 4), dropout_threshold(0.3), 5, 1.5f};
        for (const auto& add : {bias_dropout_add, baseline::bias_dropout_add}) {
            for (const DropoutMask& mask : {drops, DropoutMask{}}) {
                Floats want(x.size()), got = residual;
                add(pool, rows, n, x.data(), b.wide.data(), residual.data(), mask, want.data());
                add(pool, rows, n, x.data(), b.half.data(), got.data(), mask, got.data());
                expect_alike(want, got);
            }
        }
    });
}

TEST(CpuWideStream, RowsOfTheEmbedding) {
    std::mt19937 rng(4);
    with_wide_shapes([&](ThreadPool& pool, int64_t tokens, int64_t hidden) {
        const int64_t rows = 6, first = 10;
        const Both table(rng, rows * hidden);
        std::vector<int32_t> ids(tokens);
        for (int32_t& id : ids) id = static_cast<int32_t>(first - 1 + rng() % (rows + 2));  // some of another shard
        for (const auto& look_up : {embedding, baseline::embedding}) {
            Floats want(tokens * hidden), got(tokens * hidden, 9.0f);
            look_up(pool, tokens, hidden, ids.data(), first, rows, table.wide.data(), want.data());
            look_up(pool, tokens, hidden, ids.data(), first, rows, table.half.data(), got.data());
            EXPECT_EQ(want, got);
        }
    });
}

// The end of a layer: a product of bfloat16 added to the stream.
TEST(CpuWideStream, AProductThatIsAddedToIt) {
    std::mt19937 rng(5);
    ThreadPool pool(2);
    MatmulShape shape;
    shape.m = 37, shape.n = 50, shape.k = 600;
    const Both a(rng, shape.m * shape.k), b(rng, shape.k * shape.n);
    const Floats stream = random_floats(rng, shape.m * shape.n);
    Floats want(stream.size());
    const Matmul exact(shape, 2);
    Floats workspace(exact.workspace_bytes() / 4);
    exact.run(pool, a.wide.data(), b.wide.data(), want.data(), stream.data(), workspace.data());
    std::vector<MatmulKernel> kernels = {MatmulKernel::packed};
    if (has_bf16_dot()) kernels.push_back(MatmulKernel::bf16_dot);
    if (has_amx()) kernels.push_back(MatmulKernel::amx);
    for (const MatmulKernel kernel : kernels) {
        const Matmul product(shape, 2, kernel);
        workspace.resize(static_cast<size_t>(std::max(exact.workspace_bytes(), product.workspace_bytes()) / 4));
        Floats got(stream.size());
        product.run(pool, a.half.data(), b.half.data(), got.data(), stream.data(), workspace.data());
        for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-3) << i;
    }
}

}  // namespace
}  // namespace lockstep::kernels::cpu
