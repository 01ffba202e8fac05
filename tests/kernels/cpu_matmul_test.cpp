// Matrix products against a plain loop in double.
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/matmul.h"
#include "kernels/cpu/qkv_rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <thread>

#include "base/error.h"
#include "kernels/cpu/matmul_onednn.h"
#include "tests/kernels/cpu_data.h"

namespace lockstep::kernels::cpu {

namespace baseline {
extern const PackedMatmuls packed_matmul;
}

namespace {

constexpr const float* kNothing = nullptr;

std::vector<float> uniform_floats(std::mt19937& rng, int64_t n) {
    std::uniform_real_distribution<float> value(-1, 1);
    std::vector<float> v(n);
    for (float& x : v) x = value(rng);
    return v;
}

MatmulShape random_shape(std::mt19937& rng) {
    MatmulShape s;
    s.m = pick(rng, 1, 200), s.n = pick(rng, 1, 200), s.k = pick(rng, 1, 700);
    s.transpose_a = rng() % 2 ? Transpose::yes : Transpose::no;
    s.transpose_b = rng() % 2 ? Transpose::yes : Transpose::no;
    const bool dense = rng() % 2;
    s.lda = (s.transpose_a == Transpose::yes ? s.m : s.k) + (dense ? 0 : pick(rng, 0, 9));
    s.ldb = (s.transpose_b == Transpose::yes ? s.k : s.n) + (dense ? 0 : pick(rng, 0, 9));
    s.ldc = s.n + (dense ? 0 : pick(rng, 0, 9));
    return s;
}

// Exactly the elements that a matrix with this leading dimension has, so that an overrun is caught by ASan.
int64_t floats(int64_t rows, int64_t columns, int64_t ld) { return (rows - 1) * ld + columns; }

struct Operands {
    Operands(const MatmulShape& s, std::mt19937& rng)
        : a(s.transpose_a == Transpose::yes ? uniform_floats(rng, floats(s.k, s.m, s.lda))
                                            : uniform_floats(rng, floats(s.m, s.k, s.lda))),
          b(s.transpose_b == Transpose::yes ? uniform_floats(rng, floats(s.n, s.k, s.ldb))
                                            : uniform_floats(rng, floats(s.k, s.n, s.ldb))),
          c(floats(s.m, s.n, s.ldc), kGuard) {
        for (int64_t i = 0; i < s.m; ++i)
            for (int64_t j = 0; j < s.n; ++j) c[i * s.ldc + j] = 0.5f;
    }
    std::vector<float> a, b, c;
};

void expect_product(const MatmulShape& s, const Operands& x, const std::vector<float>& c, bool accumulate) {
    double worst = 0;
    for (int64_t i = 0; i < s.m; ++i) {
        for (int64_t j = 0; j < s.n; ++j) {
            double want = accumulate ? 0.5 : 0.0;
            for (int64_t p = 0; p < s.k; ++p)
                want += double{x.a[s.transpose_a == Transpose::yes ? p * s.lda + i : i * s.lda + p]} *
                        double{x.b[s.transpose_b == Transpose::yes ? j * s.ldb + p : p * s.ldb + j]};
            worst = std::max(worst, std::abs(want - c[i * s.ldc + j]));
        }
        for (int64_t j = s.n; j < s.ldc && i + 1 < s.m; ++j) EXPECT_EQ(c[i * s.ldc + j], kGuard);
    }
    EXPECT_LT(worst, 1e-6 * (s.k + 8)) << s.m << " " << s.n << " " << s.k;
}

TEST(CpuMatmul, MatchesDoubleOnRandomShapes) {
    std::mt19937 rng(1);
    std::unique_ptr<ThreadPool> pools[] = {std::make_unique<ThreadPool>(1), std::make_unique<ThreadPool>(2),
                                           std::make_unique<ThreadPool>(3)};
    for (int round = 0; round < 60; ++round) {
        const MatmulShape s = random_shape(rng);
        const bool accumulate = rng() % 2;
        const int threads = 1 + round % 3;
        Operands x(s, rng);
        std::vector<float> first;
        for (MatmulKernel kernel : {MatmulKernel::packed, MatmulKernel::onednn}) {
            if (kernel == MatmulKernel::onednn && !onednn_is_built()) continue;
            const Matmul matmul(s, threads, kernel);
            const AlignedBytes workspace(matmul.workspace_bytes());
            std::vector<float> c = x.c;
            matmul.run(*pools[threads - 1], x.a.data(), x.b.data(), c.data(), accumulate ? c.data() : nullptr,
                       workspace.data.get());
            expect_product(s, x, c, accumulate);
        }
    }
}

TEST(CpuMatmul, BaselineInstructionSet) {
    std::mt19937 rng(2);
    for (int round = 0; round < 20; ++round) {
        const MatmulShape s = random_shape(rng);
        Operands x(s, rng);
        const AlignedBytes workspace(packed_matmul_workspace_floats(s) * 4);
        std::vector<float> c = x.c;
        baseline::packed_matmul(s, x.a.data(), x.b.data(), c.data(), c.data(), static_cast<float*>(workspace.data.get()));
        expect_product(s, x, c, true);
    }
}

// bfloat16 operands are widened exactly, so products and sums are those of the float kernel; a bfloat16 result is that one
// rounded.
TEST(CpuMatmul, Bfloat16IsFloatOnWidenedOperands) {
    std::mt19937 rng(4);
    for (int round = 0; round < 60; ++round) {
        const MatmulShape s = random_shape(rng);
        const Operands x(s, rng);
        const auto narrow = [](const std::vector<float>& v) {
            std::vector<Bf16> out;
            for (float f : v) out.push_back(Bf16(f));
            return out;
        };
        const std::vector<Bf16> a = narrow(x.a), b = narrow(x.b);
        const std::vector<float> wide_a(a.begin(), a.end()), wide_b(b.begin(), b.end());
        const bool accumulate = rng() % 2;
        const int threads = 1 + round % 3;
        ThreadPool pool(threads);
        const Matmul matmul(s, threads, Matmul::Result::narrow);
        const AlignedBytes workspace(matmul.workspace_bytes());
        std::vector<float> want = x.c, sums = x.c;
        matmul.run(pool, wide_a.data(), wide_b.data(), want.data(), accumulate ? want.data() : nullptr, workspace.data.get());
        matmul.run(pool, a.data(), b.data(), sums.data(), accumulate ? sums.data() : nullptr, workspace.data.get());
        EXPECT_EQ(want, sums) << s.m << " " << s.n << " " << s.k;

        want = x.c;
        matmul.run(pool, wide_a.data(), wide_b.data(), want.data(), nullptr, workspace.data.get());
        std::vector<Bf16> c = narrow(x.c);
        matmul.run(pool, a.data(), b.data(), c.data(), nullptr, workspace.data.get());
        for (size_t i = 0; i < c.size(); ++i) ASSERT_EQ(Bf16(want[i]).bits, c[i].bits) << i;

        // The processor's dot product, or the same pairs in plain floats: other roundings of the same products.
        const Matmul pairs(s, threads, MatmulKernel::bf16_dot, Matmul::Result::narrow);
        std::vector<float> by_pairs = x.c;
        pairs.run(pool, a.data(), b.data(), by_pairs.data(), accumulate ? by_pairs.data() : nullptr, workspace.data.get());
        for (size_t i = 0; i < sums.size(); ++i) ASSERT_NEAR(by_pairs[i], sums[i], 3e-5 * (1 + std::abs(sums[i]))) << i;
        std::vector<Bf16> rounded_pairs = narrow(x.c);
        pairs.run(pool, a.data(), b.data(), rounded_pairs.data(), nullptr, workspace.data.get());
        for (size_t i = 0; i < c.size(); ++i) ASSERT_NEAR(rounded_pairs[i], c[i], 0x1p-7 * (1 + std::abs(want[i]))) << i;

        std::vector<Bf16> plain = narrow(x.c);
        const AlignedBytes room(packed_matmul_workspace_floats(s, Matmul::Result::narrow) * 4);
        baseline::packed_matmul(s, a.data(), b.data(), plain.data(), nullptr, static_cast<float*>(room.data.get()));
        for (size_t i = 0; i < c.size(); ++i) EXPECT_NEAR(c[i], plain[i], 0x1p-7 * (1 + std::abs(want[i]))) << i;
    }
}

TEST(CpuMatmul, BitsDoNotDependOnThreads) {
    std::mt19937 rng(3);
    const MatmulShape s{301, 517, 777, Transpose::no, Transpose::yes, 777, 777, 517};
    Operands x(s, rng);
    std::vector<float> first;
    for (int threads : {1, 2, 3, 4}) {
        ThreadPool pool(threads);
        const Matmul matmul(s, threads, MatmulKernel::packed);
        const AlignedBytes workspace(matmul.workspace_bytes());
        std::vector<float> c = x.c;
        matmul.run(pool, x.a.data(), x.b.data(), c.data(), nullptr, workspace.data.get());
        if (first.empty()) first = c;
        EXPECT_EQ(first, c) << threads << " threads";
    }
}

TEST(CpuMatmul, RanksInParallel) {
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < 4; ++rank)
        ranks.emplace_back([rank] {
            std::mt19937 rng(rank);
            ThreadPool pool(1 + rank % 2);
            for (int round = 0; round < 5; ++round) {
                const MatmulShape s = random_shape(rng);
                Operands x(s, rng);
                const Matmul matmul(s, pool.threads());
                const AlignedBytes workspace(matmul.workspace_bytes());
                matmul.run(pool, x.a.data(), x.b.data(), x.c.data(), nullptr, workspace.data.get());
                expect_product(s, x, x.c, false);
            }
        });
    for (std::thread& rank : ranks) rank.join();
}

TEST(CpuMatmul, NothingToSum) {
    ThreadPool pool(2);
    const Matmul matmul({5, 7, 0}, 2, MatmulKernel::packed);
    const AlignedBytes workspace(matmul.workspace_bytes());
    std::vector<float> c(35, 3.0f);
    matmul.run(pool, kNothing, kNothing, c.data(), c.data(), workspace.data.get());
    EXPECT_EQ(c, std::vector<float>(35, 3.0f));
    matmul.run(pool, kNothing, kNothing, c.data(), nullptr, workspace.data.get());
    EXPECT_EQ(c, std::vector<float>(35, 0.0f));
}

TEST(CpuMatmul, NonFiniteValuesAreKept) {
    ThreadPool pool(1);
    const Matmul matmul({3, 20, 9}, 1);
    const AlignedBytes workspace(matmul.workspace_bytes());
    std::vector<float> a(27, 1.0f), b(180, 1.0f), c(60);
    a[9 + 4] = NAN;
    matmul.run(pool, a.data(), b.data(), c.data(), nullptr, workspace.data.get());
    EXPECT_EQ(c[0], 9.0f);
    for (int j = 20; j < 40; ++j) EXPECT_TRUE(std::isnan(c[j]));
}

TEST(CpuMatmul, RefusesAnotherNumberOfThreads) {
    ThreadPool pool(2);
    const Matmul matmul({4, 4, 4}, 1);
    EXPECT_THROW(matmul.run(pool, kNothing, kNothing, static_cast<float*>(nullptr), nullptr, nullptr), InternalError);
}

TEST(CpuQkvRope, EqualsAProductThatIsTakenApart) {
    std::mt19937 rng(11);
    for (int threads : {1, 2}) {
        ThreadPool pool(threads);
        QkvRope shape;
        shape.tokens = 37, shape.hidden = 20, shape.head_dim = 6, shape.threads = threads;
        shape.n[0] = 24, shape.n[1] = shape.n[2] = 12;
        const auto floats = [&](int64_t n) {
            std::vector<float> v(static_cast<size_t>(n));
            for (float& x : v) x = std::uniform_real_distribution<float>(-1, 1)(rng);
            return v;
        };
        const std::vector<float> x = floats(37 * 20), w = floats(48 * 20);
        std::vector<int32_t> pos(37);
        for (size_t i = 0; i < pos.size(); ++i) pos[i] = static_cast<int32_t>(3 * i % 11);
        const std::vector<double> frequencies = {1, 0.3, 0.01};
        std::vector<float> got[3], want[3], together(37 * 48);
        for (int i = 0; i < 3; ++i) got[i].resize(37 * shape.n[i]), want[i].resize(37 * shape.n[i]);
        AlignedBytes workspace(shape.workspace_bytes());
        shape.run<float>(pool, x.data(), w.data(), pos.data(), frequencies.data(), 1.0f,
                         {got[0].data(), got[1].data(), got[2].data()}, workspace.data.get());
        const Matmul product({37, 48, 20, Transpose::no, Transpose::yes}, threads);
        AlignedBytes room(product.workspace_bytes());
        product.run(pool, x.data(), w.data(), together.data(), static_cast<const float*>(nullptr), room.data.get());
        split_qkv(Range{0, 37}, {37, 4, 2, 6}, together.data(), pos.data(), frequencies.data(), 1.0f, want[0].data(),
                  want[1].data(), want[2].data());
        for (int i = 0; i < 3; ++i) EXPECT_EQ(got[i], want[i]) << i;
    }
}

}  // namespace
}  // namespace lockstep::kernels::cpu
