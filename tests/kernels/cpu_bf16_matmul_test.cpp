// Products of bfloat16 by each kernel that multiplies them, against a plain loop in double.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>

#include "base/error.h"
#include "kernels/cpu/matmul.h"
#include "kernels/kernel.h"
#include "tests/kernels/cpu_data.h"

namespace lockstep::kernels::cpu {
namespace {

const char* name(MatmulKernel kernel) {
    return kernel == MatmulKernel::amx ? "amx" : kernel == MatmulKernel::bf16_dot ? "dot" : "packed";
}

std::vector<Bf16> random_halves(std::mt19937& rng, int64_t n) {
    std::uniform_real_distribution<float> value(-1, 1);
    std::vector<Bf16> v;
    for (int64_t i = 0; i < n; ++i) v.push_back(Bf16(value(rng)));
    return v;
}

// A workspace whose end shows whether somebody wrote past it.
class Workspace {
public:
    explicit Workspace(int64_t bytes)
        : bytes_(bytes), data_(std::aligned_alloc(64, (bytes + kPast + 127) / 64 * 64), &std::free) {
        std::memset(end(), 77, kPast);
    }
    void* begin() const { return data_.get(); }
    bool is_whole() const {
        return std::all_of(end(), end() + kPast, [](char c) { return c == 77; });
    }

private:
    static constexpr int64_t kPast = 1 << 20;
    char* end() const { return static_cast<char*>(data_.get()) + bytes_; }
    int64_t bytes_;
    std::unique_ptr<void, decltype(&std::free)> data_;
};

struct Product {
    MatmulShape s;
    std::vector<Bf16> a, b;
    std::vector<double> product;  // [m, n]
    // Operands hold exactly what their leading dimensions ask for, so that an overrun is caught by ASan.
    Product(const MatmulShape& shape, std::mt19937& rng) : s(shape) {
        const bool ta = s.transpose_a == Transpose::yes, tb = s.transpose_b == Transpose::yes;
        a = random_halves(rng, ((ta ? s.k : s.m) - 1) * s.lda + (ta ? s.m : s.k));
        b = random_halves(rng, ((tb ? s.n : s.k) - 1) * s.ldb + (tb ? s.k : s.n));
        for (int64_t i = 0; i < s.m; ++i) {
            for (int64_t j = 0; j < s.n; ++j) {
                double sum = 0;
                for (int64_t p = 0; p < s.k; ++p)
                    sum += double{static_cast<float>(a[ta ? p * s.lda + i : i * s.lda + p])} *
                           double{static_cast<float>(b[tb ? j * s.ldb + p : p * s.ldb + j])};
                product.push_back(sum);
            }
        }
    }
    int64_t c_elements() const { return (s.m - 1) * s.ldc + s.n; }
};

MatmulShape random_shape(std::mt19937& rng, int64_t most_k) {
    MatmulShape s;
    s.m = pick(rng, 1, 150), s.n = pick(rng, 1, 150), s.k = pick(rng, 1, most_k);
    s.transpose_a = rng() % 2 ? Transpose::yes : Transpose::no;
    s.transpose_b = rng() % 2 ? Transpose::yes : Transpose::no;
    const bool dense = rng() % 2;
    s.lda = (s.transpose_a == Transpose::yes ? s.m : s.k) + (dense ? 0 : pick(rng, 0, 9));
    s.ldb = (s.transpose_b == Transpose::yes ? s.k : s.n) + (dense ? 0 : pick(rng, 0, 9));
    s.ldc = s.n + (dense ? 0 : pick(rng, 0, 9));
    return s;
}

// Nothing before, what stands in C, or another tensor.
template <class Out>
void expect_product(const Product& x, MatmulKernel kernel, int threads, int before) {
    const MatmulShape& s = x.s;
    ThreadPool pool(threads);
    const Matmul matmul(s, threads, kernel, std::is_same_v<Out, Bf16> ? Matmul::Result::narrow : Matmul::Result::f32);
    const Workspace workspace(matmul.workspace_bytes());
    std::vector<Out> c(x.c_elements(), Out(kGuard)), other(x.c_elements(), Out(0.25f));
    for (int64_t i = 0; i < s.m; ++i)
        for (int64_t j = 0; j < s.n; ++j) c[i * s.ldc + j] = Out(0.5f);
    matmul.run(pool, x.a.data(), x.b.data(), c.data(),
               before == 1   ? c.data()
               : before == 2 ? other.data()
                             : nullptr,
               workspace.begin());
    double worst = 0;
    for (int64_t i = 0; i < s.m; ++i) {
        for (int64_t j = 0; j < s.n; ++j) {
            const double want = x.product[i * s.n + j] + (before == 1 ? 0.5 : before == 2 ? 0.25 : 0);
            const double rounding = std::is_same_v<Out, Bf16> ? 0x1p-8 * std::abs(want) : 0;
            worst = std::max(worst, std::abs(want - static_cast<float>(c[i * s.ldc + j])) - rounding);
        }
        for (int64_t j = s.n; j < s.ldc && i + 1 < s.m; ++j) EXPECT_EQ(c[i * s.ldc + j], Out(kGuard));
    }
    EXPECT_LT(worst, 1e-6 * (s.k + 8)) << s.m << " " << s.n << " " << s.k << " before " << before;
    EXPECT_TRUE(workspace.is_whole()) << s.m << " " << s.n << " " << s.k;
}

class CpuBf16Matmul : public ::testing::TestWithParam<MatmulKernel> {
protected:
    void SetUp() override {
        if (GetParam() == MatmulKernel::amx && !has_amx()) GTEST_SKIP() << "this processor has no AMX for bfloat16";
    }
};
INSTANTIATE_TEST_SUITE_P(Kernels, CpuBf16Matmul,
                         ::testing::Values(MatmulKernel::packed, MatmulKernel::bf16_dot, MatmulKernel::amx),
                         [](const auto& info) { return name(info.param); });

TEST_P(CpuBf16Matmul, MatchesDoubleOnRandomShapes) {
    std::mt19937 rng(1);
    for (int round = 0; round < 60; ++round) {
        const Product x(random_shape(rng, round % 10 == 0 ? 2500 : 300), rng);
        expect_product<float>(x, GetParam(), 1 + round % 3, round % 5 % 3);
        expect_product<Bf16>(x, GetParam(), 1 + round % 3, 0);
    }
}

TEST_P(CpuBf16Matmul, MatchesDoubleAtTheEdgesOfTiles) {
    std::mt19937 rng(2);
    for (const int64_t m : {1, 15, 16, 17, 31, 32, 33, 65}) {
        for (const int64_t n : {1, 16, 31, 32, 33, 64}) {
            for (const int64_t k : {1, 2, 31, 32, 33, 65}) {
                for (const Transpose ta : {Transpose::no, Transpose::yes}) {
                    for (const Transpose tb : {Transpose::no, Transpose::yes}) {
                        const Product x({m, n, k, ta, tb, ta == Transpose::yes ? m : k, tb == Transpose::yes ? k : n, n}, rng);
                        expect_product<float>(x, GetParam(), 1, static_cast<int>(rng() % 3));
                        expect_product<Bf16>(x, GetParam(), 1, 0);
                    }
                }
            }
        }
    }
}

// More than one block of K, M and N, and sums in between in the workspace.
TEST_P(CpuBf16Matmul, MatchesDoubleOverSeveralBlocks) {
    std::mt19937 rng(3);
    for (const MatmulShape& s : {MatmulShape{530, 40, 1100, Transpose::no, Transpose::yes, 1100, 1100, 40},
                                 MatmulShape{40, 2100, 1060, Transpose::yes, Transpose::no, 40, 2100, 2100}}) {
        const Product x(s, rng);
        expect_product<float>(x, GetParam(), 2, 1);
        expect_product<Bf16>(x, GetParam(), 2, 0);
    }
}

// The last thread's part can be smaller and its blocks larger: 2,080 columns are two blocks, 2,048 are one.
TEST_P(CpuBf16Matmul, WorkspaceHoldsUnequalParts) {
    std::mt19937 rng(4);
    const Product x({20, 4128, 100, Transpose::no, Transpose::yes, 100, 100, 4128}, rng);
    expect_product<Bf16>(x, GetParam(), 2, 0);
    expect_product<float>(x, GetParam(), 2, 1);
}

TEST_P(CpuBf16Matmul, BitsDoNotDependOnThreads) {
    std::mt19937 rng(5);
    for (const bool accumulate : {false, true}) {
        const MatmulShape s{301, 517, 1777, Transpose::no, Transpose::yes, 1777, 1777, 517};
        const std::vector<Bf16> a = random_halves(rng, s.m * s.k), b = random_halves(rng, s.n * s.k);
        std::vector<float> first;
        for (int threads : {1, 2, 3, 4, 6}) {
            ThreadPool pool(threads);
            const Matmul matmul(s, threads, GetParam());
            const Workspace workspace(matmul.workspace_bytes());
            std::vector<float> c(s.m * s.n, 0.7f);
            matmul.run(pool, a.data(), b.data(), c.data(), accumulate ? c.data() : nullptr, workspace.begin());
            if (first.empty()) first = c;
            EXPECT_EQ(first, c) << threads << " threads";
        }
    }
}

TEST_P(CpuBf16Matmul, NonFiniteValuesAreKept) {
    ThreadPool pool(1);
    const Matmul matmul({3, 40, 9}, 1, GetParam(), Matmul::Result::narrow);
    const Workspace workspace(matmul.workspace_bytes());
    std::vector<Bf16> a(27, Bf16(1.0f)), b(360, Bf16(1.0f)), c(120);
    a[9 + 4] = Bf16(NAN), a[18 + 2] = Bf16(INFINITY);
    matmul.run(pool, a.data(), b.data(), c.data(), nullptr, workspace.begin());
    EXPECT_EQ(c[0], Bf16(9.0f));
    for (int j = 40; j < 80; ++j) EXPECT_TRUE(std::isnan(static_cast<float>(c[j])));
    for (int j = 80; j < 120; ++j) EXPECT_TRUE(std::isinf(static_cast<float>(c[j])));
}

TEST(CpuAmx, IsRefusedWhereTheProcessorLacksIt) {
    if (has_amx()) GTEST_SKIP() << "this processor has AMX";
    const Matmul matmul({4, 4, 4}, 1, MatmulKernel::amx);  // a plan may ask for its workspace
    ThreadPool pool(1);
    const Workspace workspace(matmul.workspace_bytes());
    const std::vector<Bf16> a(16), b(16);
    std::vector<float> c(16);
    EXPECT_THROW(matmul.run(pool, a.data(), b.data(), c.data(), nullptr, workspace.begin()), InternalError);
}

// What is chosen without a table.
TEST(CpuAmx, IsTheFirstChoiceForBfloat16WhereItIs) {
    std::string first;
    bool served = false;
    for (const ops::KernelEntry& e : cpu_catalog(1).entries) {
        if (e.op == "einsum" && e.dtype == Dtype::BF16 && first.empty()) first = e.kernel;
        served |= e.kernel == "cpu.matmul_amx";
    }
    EXPECT_EQ(served, has_amx());
    EXPECT_EQ(first, has_amx() ? "cpu.matmul_amx" : prefers_bf16_dot() ? "cpu.matmul_bf16" : "cpu.matmul");
}

}  // namespace
}  // namespace lockstep::kernels::cpu
