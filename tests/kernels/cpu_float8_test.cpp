// Float8 kernels of every instruction set that is here, for every storage type, by the conversions of base/float8.h; products
// against plain loops in double, with equal bits for one to three threads.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kernels/cpu/float8_runs.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/scaled_matmul.h"
#include "tests/kernels/cpu_data.h"

namespace lockstep::kernels::cpu {
namespace {

constexpr Isa kIsas[] = {Isa::baseline, Isa::avx2, Isa::avx512};

template <class F>
void on_every_isa(const F& f) {
    const Isa before = isa();
    for (const Isa one : kIsas) {
        if (!has_isa(one)) continue;
        use_isa(one);
        f(cpu::name(one));
    }
    use_isa(before);
}

template <class T>
std::vector<T> values(std::mt19937& rng, int64_t n) {
    std::vector<T> out;
    for (int64_t i = 0; i < n; ++i) {
        const float x = random_floats(rng, 1, 3)[0];
        out.push_back(T(std::ldexp(x, static_cast<int>(rng() % 40) - 30)));
    }
    return out;
}

template <class T, class Q>
void expect_runs(std::mt19937& rng, int64_t n, const char* isa) {
    std::vector<T> x = values<T>(rng, n);
    if (n > 100) x[7] = T(INFINITY), x[8] = T(-INFINITY), x[50] = T(NAN), x[51] = T(-0.0F);
    for (const float scale : {1.0F, 0.37F, 4.48e14F, 0x1p-20F}) {
        std::vector<Q> q(static_cast<size_t>(n + 1), Q(1.0F));
        run_to_float8(n, x.data(), scale, q.data());
        std::vector<T> back(static_cast<size_t>(n + 1), T(5.0F));
        run_from_float8(n, q.data(), scale, back.data());
        for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
            ASSERT_EQ(q[i].bits, Q(static_cast<float>(x[i]) * scale).bits) << isa << " " << i << " " << static_cast<float>(x[i]);
            const T want(static_cast<float>(q[i]) * scale);
            if (std::isnan(static_cast<float>(want))) ASSERT_TRUE(std::isnan(static_cast<float>(back[i])));
            else ASSERT_EQ(std::memcmp(&back[i], &want, sizeof want), 0) << isa << " " << i;
        }
        EXPECT_EQ(static_cast<float>(q.back()), 1.0F) << "written past the end";
        EXPECT_EQ(static_cast<float>(back.back()), 5.0F) << "written past the end";
    }
}

// Every code, at every place of a vector; as it is, and times powers of two.
template <class Q>
void expect_codes(const char* isa, bool is_scaled) {
    std::vector<Q> q(1000);
    std::vector<Bf16> x(q.size() + 1, Bf16(5.0F));
    std::vector<float> scales(q.size(), 1);
    for (size_t i = 0; i < q.size(); ++i) q[i].bits = static_cast<uint8_t>(i * 7);
    for (size_t i = 0; i < q.size() && is_scaled; ++i)
        scales[i] = i % 50 == 0 ? NAN : std::ldexp(1.0F, static_cast<int>(i % 220) - 108);
    if (is_scaled) columns_from_float8(static_cast<int64_t>(q.size()), q.data(), scales.data(), x.data());
    else run_from_float8(static_cast<int64_t>(q.size()), q.data(), 1.0F, x.data());
    for (size_t i = 0; i < q.size(); ++i) {
        const auto want = static_cast<float>(q[i]) * scales[i], got = static_cast<float>(x[i]);
        if (std::isnan(want)) EXPECT_TRUE(std::isnan(got)) << isa << " " << i;
        else EXPECT_EQ(std::bit_cast<uint32_t>(want), std::bit_cast<uint32_t>(got)) << isa << " " << i;
    }
    EXPECT_EQ(static_cast<float>(x.back()), 5.0F) << "written past the end";
}

template <class T>
void expect_largest(std::mt19937& rng, int64_t n) {
    std::vector<T> x = values<T>(rng, n);
    float most = 0;
    for (const T v : x) most = std::max(most, std::abs(static_cast<float>(v)));
    EXPECT_EQ(std::bit_cast<float>(largest_size(n, x.data())), most);
    if (n == 0) return;
    x[static_cast<size_t>(n / 2)] = T(-INFINITY);
    EXPECT_EQ(std::bit_cast<float>(largest_size(n, x.data())), INFINITY);
    x[static_cast<size_t>(n / 3)] = T(-NAN);
    EXPECT_TRUE(std::isnan(std::bit_cast<float>(largest_size(n, x.data()))));
}

// With a scale for each element, and for each block: the codes and values that a scale at a time gives.
template <class T, class Q>
void expect_columns_and_blocks(std::mt19937& rng, int64_t n, int64_t block, const char* isa) {
    const int64_t count = n * block;
    const std::vector<T> x = values<T>(rng, count);
    std::vector<float> scales;
    for (const float s : random_floats(rng, count, 100)) scales.push_back(std::abs(s));
    const auto at = [](const auto& v, int64_t i) { return v.data() + i; };
    std::vector<Q> columns(static_cast<size_t>(count + 1), Q(1.0F)), blocks = columns;
    columns_to_float8(1, count, count, count, x.data(), scales.data(), columns.data());
    blocks_to_float8(n, block, x.data(), scales.data(), blocks.data());
    std::vector<T> back(static_cast<size_t>(count + 1), T(5.0F));
    columns_from_float8(count, columns.data(), scales.data(), back.data());
    std::vector<uint32_t> most(static_cast<size_t>(n + 1), 7), of_columns(static_cast<size_t>(count + 1), 7);
    largest_of_blocks(n, block, x.data(), most.data());
    for (const int64_t first : {int64_t{0}, count / 3}) largest_of_columns(1, count - first, 0, at(x, first), of_columns.data());
    for (int64_t i = 0; i < count; ++i) {
        const auto k = static_cast<size_t>(i), b = static_cast<size_t>(i / block);
        ASSERT_EQ(columns[k].bits, Q(static_cast<float>(x[k]) * scales[k]).bits) << isa << " " << i;
        ASSERT_EQ(blocks[k].bits, Q(static_cast<float>(x[k]) * scales[b]).bits) << isa << " " << i << " " << block;
        const T want(static_cast<float>(columns[k]) * scales[k]);
        ASSERT_EQ(std::memcmp(&back[k], &want, sizeof want), 0) << isa << " " << i;
        float largest = std::abs(static_cast<float>(x[k]));
        if (i < count - count / 3)
            largest = std::max(largest, std::abs(static_cast<float>(x[k + static_cast<size_t>(count / 3)])));
        ASSERT_EQ(std::bit_cast<float>(std::max(of_columns[k], 7u)), std::max(largest, std::bit_cast<float>(7u)))
            << isa << " " << i;
    }
    for (int64_t b = 0; b < n; ++b)
        ASSERT_EQ(most[static_cast<size_t>(b)], largest_size(block, at(x, b * block))) << isa << " " << b << " " << block;
    EXPECT_EQ(static_cast<float>(columns.back()), 1.0F) << "written past the end";
    EXPECT_EQ(static_cast<float>(blocks.back()), 1.0F) << "written past the end";
    EXPECT_EQ(static_cast<float>(back.back()), 5.0F) << "written past the end";
    EXPECT_EQ(most.back(), 7u) << "written past the end";
    EXPECT_EQ(of_columns.back(), 7u) << "written past the end";
}

// Of every bfloat16, in the order of their bits and in another one, times every power of two and other scales: one for all, for
// blocks, and for columns of several rows.
template <class Q>
void expect_every_code(const char* isa) {
    constexpr int64_t kRows = 8, kColumns = 65536 / kRows, kBlock = 32;
    std::vector<Bf16> x(65536);
    for (const uint32_t step : {1u, 40503u}) {
        for (uint32_t i = 0; i < 65536; ++i) x[i].bits = static_cast<uint16_t>(i * step);
        std::vector<float> scales = {0,           INFINITY,  NAN,      0.37F, 3.0F, 0x1.000002p5F, 0x1.fffffep-3F,
                                     0x1.8p-126F, 0x1p-127F, 0x1p-149F};
        for (int power = -126; power < 128; ++power) scales.push_back(std::ldexp(1.0F, power));
        for (const float scale : scales) {
            std::vector<Q> want, run(x.size()), blocks(x.size()), rows(x.size());
            for (const Bf16 v : x) want.emplace_back(static_cast<float>(v) * scale);
            const std::vector<float> all(kColumns, scale);
            run_to_float8(static_cast<int64_t>(x.size()), x.data(), scale, run.data());
            constexpr int64_t kTogether = kColumns / kBlock;
            for (size_t b = 0; b < x.size() / kBlock; b += kTogether)
                blocks_to_float8(kTogether, kBlock, x.data() + b * kBlock, all.data(), blocks.data() + b * kBlock);
            columns_to_float8(kRows, kColumns, kColumns, 0, x.data(), all.data(), rows.data());
            for (size_t i = 0; i < x.size(); ++i) {
                for (const std::vector<Q>* const got : {&run, &blocks, &rows}) {
                    const float code = (*got)[i], wanted = want[i];
                    if (std::isnan(wanted)) ASSERT_TRUE(std::isnan(code));  // of two NaNs either may give the sign
                    else ASSERT_EQ((*got)[i].bits, want[i].bits) << isa << " " << static_cast<float>(x[i]) << " times " << scale;
                }
            }
        }
    }
}

TEST(CpuFloat8, EveryBfloat16TimesEveryPowerOfTwo) {
    on_every_isa([](const char* isa) { expect_every_code<F8E4M3>(isa), expect_every_code<F8E5M2>(isa); });
}

// Rows that are no neighbours, of more columns than are worked on at once; the scales are powers of two, some, or all but one.
template <class T>
void expect_rows(std::mt19937& rng, int64_t rows, int64_t n, int64_t not_a_power, const char* isa) {
    const int64_t stride = n + 5;
    const std::vector<T> x = values<T>(rng, rows * stride);
    std::vector<float> scales;
    for (int64_t i = 0; i < n; ++i) scales.push_back(i == not_a_power ? 0.3F : std::ldexp(1.0F, static_cast<int>(rng() % 30)));
    std::vector<F8E4M3> q(x.size(), F8E4M3(1.0F));
    std::vector<uint32_t> most(static_cast<size_t>(n + 1), 7);
    columns_to_float8(rows, n, stride, n, x.data(), scales.data(), q.data());
    largest_of_columns(rows, n, stride, x.data(), most.data());
    for (int64_t i = 0; i < n; ++i) {
        uint32_t largest = 7;
        for (int64_t r = 0; r < rows; ++r) {
            const auto at = static_cast<size_t>(r * stride + i);
            const auto v = static_cast<float>(x[at]);
            ASSERT_EQ(q[at].bits, F8E4M3(v * scales[static_cast<size_t>(i)]).bits) << isa << " row " << r << " column " << i;
            largest = std::max(largest, std::bit_cast<uint32_t>(std::abs(v)));
        }
        ASSERT_EQ(most[static_cast<size_t>(i)], largest) << isa << " column " << i << " of " << rows << " rows";
    }
    for (size_t i = 0; i < q.size(); ++i) {
        if (static_cast<int64_t>(i) % stride < n) continue;
        ASSERT_EQ(static_cast<float>(q[i]), 1.0F) << "written past a row";
    }
    EXPECT_EQ(most.back(), 7u) << "written past the end";
}

TEST(CpuFloat8, RowsThatAreNoNeighbours) {
    on_every_isa([](const char* isa) {
        std::mt19937 rng(10);
        for (const int64_t rows : {1, 2, 5, 32}) {
            for (const int64_t n : {1, 31, 96, 4096, 9000}) {
                for (const int64_t not_a_power : {int64_t{-1}, n / 2}) {
                    expect_rows<float>(rng, rows, n, not_a_power, isa), expect_rows<Bf16>(rng, rows, n, not_a_power, isa);
                    expect_rows<F16>(rng, rows, n, not_a_power, isa);
                }
            }
        }
    });
}

TEST(CpuFloat8, ScalesOfBlocksAreThoseOfTheirDefinition) {
    on_every_isa([](const char* isa) {
        std::mt19937 rng(9);
        std::vector<uint32_t> most = {0,
                                      1,
                                      0x7f7fffff,
                                      0x7f800000,
                                      0x7fc00000,
                                      std::bit_cast<uint32_t>(448.0F),
                                      std::bit_cast<uint32_t>(448.0F) + 1,
                                      std::bit_cast<uint32_t>(57344.0F)};
        while (most.size() < 3001) most.push_back(static_cast<uint32_t>(rng()) % 0x7f900000);
        for (const float largest : {F8E4M3::kLargest, F8E5M2::kLargest}) {
            for (const BlockRounding rounding : {BlockRounding::floor, BlockRounding::rceil}) {
                std::vector<E8M0> s(most.size() + 1, E8M0(1.0F));
                std::vector<float> by(most.size() + 1, 5);
                block_scales(static_cast<int64_t>(most.size()), most.data(), largest, rounding, s.data(), by.data());
                for (size_t i = 0; i < most.size(); ++i) {
                    const E8M0 want = block_scale(static_cast<double>(std::bit_cast<float>(most[i])), largest, rounding);
                    ASSERT_EQ(s[i].bits, want.bits) << isa << " " << most[i];
                    ASSERT_EQ(std::bit_cast<uint32_t>(by[i]), std::bit_cast<uint32_t>(want.reciprocal()))
                        << isa << " " << most[i];
                }
                EXPECT_EQ(static_cast<float>(s.back()), 1.0F) << "written past the end";
                EXPECT_EQ(by.back(), 5.0F) << "written past the end";
            }
        }
    });
}

TEST(CpuFloat8, FloatScalesAreThoseOfTheirDefinition) {
    on_every_isa([](const char* isa) {
        std::mt19937 rng(12);
        std::vector<uint32_t> most = {0, 1, 0x7f7fffff, 0x7f800000, 0x7fc00000};
        while (most.size() < 1001) most.push_back(static_cast<uint32_t>(rng()) % 0x7f900000);
        for (const float largest : {F8E4M3::kLargest, F8E5M2::kLargest}) {
            std::vector<float> s(most.size() + 1, 5), by = s;
            float_scales(static_cast<int64_t>(most.size()), most.data(), largest, s.data(), by.data());
            for (size_t i = 0; i < most.size(); ++i) {
                const float want = scale_of(static_cast<double>(std::bit_cast<float>(most[i])), largest, false);
                if (std::isnan(want)) {
                    ASSERT_TRUE(std::isnan(by[i]) && std::isnan(s[i])) << isa << " " << most[i];
                    continue;
                }
                ASSERT_EQ(by[i], want) << isa << " " << most[i];
                ASSERT_EQ(s[i], 1 / want) << isa << " " << most[i];
            }
            EXPECT_EQ(s.back(), 5) << "written past the end";
            EXPECT_EQ(by.back(), 5) << "written past the end";
        }
    });
}

TEST(CpuFloat8, ColumnsAndBlocksAreThoseOfTheStorageTypes) {
    on_every_isa([](const char* isa) {
        std::mt19937 rng(8);
        for (const int64_t block : {1, 7, 16, 24, 32, 96, 128, 256, 300, 512}) {
            for (const int64_t n : {1, 3, 8, 17}) {
                expect_columns_and_blocks<float, F8E4M3>(rng, n, block, isa),
                    expect_columns_and_blocks<float, F8E5M2>(rng, n, block, isa);
                expect_columns_and_blocks<Bf16, F8E4M3>(rng, n, block, isa),
                    expect_columns_and_blocks<Bf16, F8E5M2>(rng, n, block, isa);
                expect_columns_and_blocks<F16, F8E4M3>(rng, n, block, isa),
                    expect_columns_and_blocks<F16, F8E5M2>(rng, n, block, isa);
            }
        }
    });
}

TEST(CpuFloat8, RunsAreThoseOfTheStorageTypes) {
    on_every_isa([](const char* isa) {
        std::mt19937 rng(3);
        for (const bool is_scaled : {false, true}) expect_codes<F8E4M3>(isa, is_scaled), expect_codes<F8E5M2>(isa, is_scaled);
        for (const int64_t n : {0, 1, 5, 16, 33, 255, 256, 257, 1000}) {
            expect_runs<float, F8E4M3>(rng, n, isa), expect_runs<float, F8E5M2>(rng, n, isa);
            expect_runs<Bf16, F8E4M3>(rng, n, isa), expect_runs<Bf16, F8E5M2>(rng, n, isa);
            expect_runs<F16, F8E4M3>(rng, n, isa), expect_runs<F16, F8E5M2>(rng, n, isa);
            expect_largest<float>(rng, n), expect_largest<Bf16>(rng, n), expect_largest<F16>(rng, n);
        }
    });
}

// Scales of rows, and of blocks of K.
struct Scaled {
    bool has_rows, has_powers;
    int64_t block;  // of K; 0: all of it
};
ScaledFactor factor(Dtype type, int64_t outer, int64_t k, const Scaled& how) {
    ScaledFactor f{type, {}, {}, how.has_powers};
    const int64_t block = how.block == 0 ? k : how.block, blocks = (k + block - 1) / block;
    for (int64_t i = 0; i < outer; ++i) f.outer.push_back(how.has_rows ? i * blocks : 0);
    for (int64_t p = 0; p < k; ++p) f.inner.push_back(p / block);
    return f;
}
std::vector<float> scales_of(std::mt19937& rng, const ScaledFactor& f, float spread) {
    std::vector<float> out = random_floats(rng, f.outer.back() + f.inner.back() + 1, spread);
    for (float& s : out) s = f.has_powers ? static_cast<float>(E8M0(std::abs(s) + spread / 8)) : s;
    return out;
}

template <class Out>
void expect_product(std::mt19937& rng, MatmulShape s, MatmulKernel kernel, const Scaled& of_a, const Scaled& of_b, bool adds) {
    std::vector<F8E4M3> a;
    std::vector<F8E5M2> b;
    for (const float x : random_floats(rng, s.m * s.k, 20)) a.emplace_back(x);
    for (const float x : random_floats(rng, s.n * s.k, 500)) b.emplace_back(x);
    const bool ta = s.transpose_a == Transpose::yes, tb = s.transpose_b == Transpose::yes;
    const ScaledFactor fa = factor(Dtype::F8E4M3, s.m, s.k, of_a), fb = factor(Dtype::F8E5M2, s.n, s.k, of_b);
    const std::vector<float> sa = scales_of(rng, fa, 0.01F), sb = scales_of(rng, fb, 0.001F);
    const std::vector<float> before = random_floats(rng, s.m * s.n, 10);
    std::vector<double> want;
    double most = 0;
    for (int64_t i = 0; i < s.m; ++i) {
        for (int64_t j = 0; j < s.n; ++j) {
            double sum = adds ? before[static_cast<size_t>(i * s.n + j)] : 0;
            for (int64_t p = 0; p < s.k; ++p) {
                const auto at_a = static_cast<size_t>(ta ? p * s.m + i : i * s.k + p),
                           at_b = static_cast<size_t>(tb ? j * s.k + p : p * s.n + j), step = static_cast<size_t>(p);
                const auto x = static_cast<double>(static_cast<float>(a[at_a])),
                           y = static_cast<double>(static_cast<float>(b[at_b]));
                sum += x * sa[static_cast<size_t>(fa.outer[static_cast<size_t>(i)] + fa.inner[step])] * y *
                       sb[static_cast<size_t>(fb.outer[static_cast<size_t>(j)] + fb.inner[step])];
            }
            want.push_back(sum);
            most = std::max(most, std::abs(sum));
        }
    }
    std::vector<Out> first;
    for (const int threads : {1, 2, 3}) {
        const ScaledMatmul matmul(s, fa, fb, threads, kernel);
        ThreadPool pool(threads);
        std::vector<Out> c(want.size(), Out(NAN));
        if constexpr (std::is_same_v<Out, float>) {
            if (adds) c = before;
        }
        constexpr int64_t kPast = 4096;
        AlignedBytes workspace(matmul.workspace_bytes() + kPast);
        char* const end = static_cast<char*>(workspace.data.get()) + matmul.workspace_bytes();
        std::memset(end, 77, kPast);
        const float* added = nullptr;
        if constexpr (std::is_same_v<Out, float>) added = adds ? c.data() : nullptr;
        matmul.run(pool, a.data(), b.data(), sa.data(), sb.data(), c.data(), added, workspace.data.get());
        for (int64_t i = 0; i < kPast; ++i) ASSERT_EQ(end[i], 77) << "written past the workspace";
        const double tolerance = std::is_same_v<Out, float> ? 1e-5 : std::is_same_v<Out, Bf16> ? 0x1p-8 : 0x1p-10;
        for (size_t i = 0; i < want.size(); ++i)
            ASSERT_NEAR(static_cast<double>(static_cast<float>(c[i])), want[i], tolerance * most) << threads << " " << i;
        if (first.empty()) first = c;
        EXPECT_EQ(std::memcmp(first.data(), c.data(), c.size() * sizeof(Out)), 0) << threads << " threads give other bits";
    }
}

TEST(CpuFloat8, ProductsAreThoseInDoubleWithEqualBitsForAllThreads) {
    on_every_isa([](const char* isa) {
        std::mt19937 rng(5);
        for (const MatmulKernel kernel : {MatmulKernel::packed, MatmulKernel::bf16_dot, MatmulKernel::amx}) {
            if (kernel == MatmulKernel::amx && !has_amx()) continue;
            int turn = 0;
            for (const auto& [m, n, k] :
                 {std::array<int64_t, 3>{1, 1, 1}, {5, 7, 9}, {33, 70, 40}, {65, 31, 1100}, {1100, 40, 24}, {20, 2100, 16}}) {
                for (const Transpose ta : {Transpose::no, Transpose::yes}) {
                    for (const Transpose tb : {Transpose::no, Transpose::yes}) {
                        SCOPED_TRACE(std::string(isa) + " " + std::to_string(m) + " " + std::to_string(n) + " " +
                                     std::to_string(k));
                        MatmulShape s;
                        s.m = m, s.n = n, s.k = k, s.transpose_a = ta, s.transpose_b = tb;
                        const bool rows = turn % 2 == 0, powers = turn % 5 < 2;
                        const int64_t blocks[] = {0, (k + 1) / 2, 8, 32};
                        const Scaled of_a{rows, powers, blocks[turn % 4]}, of_b{!rows, turn % 3 == 0, blocks[turn % 3]};
                        expect_product<float>(rng, s, kernel, of_a, of_b, turn % 4 < 2);
                        if (m * n < 10000) expect_product<Bf16>(rng, s, kernel, of_a, of_b, false);
                        if (m * n < 10000) expect_product<F16>(rng, s, kernel, of_a, of_b, false);
                        ++turn;
                    }
                }
            }
        }
    });
}

// Times the unit matrix: every code, on either side, along K and across it, with scales of blocks of K that are powers of two or
// with one scale.
template <class Q>
void expect_codes_in_product(MatmulKernel kernel, Transpose ta, Transpose tb, bool is_left, bool has_blocks) {
    constexpr int64_t kCount = 70, kDepth = 96;
    MatmulShape s;
    s.m = is_left ? kCount : kDepth, s.n = is_left ? kDepth : kCount, s.k = kDepth, s.transpose_a = ta, s.transpose_b = tb;
    const Dtype type = Q::kHasInfinity ? Dtype::F8E5M2 : Dtype::F8E4M3;
    const ScaledFactor codes = factor(type, kCount, kDepth, {true, true, has_blocks ? 32 : 0});
    const ScaledFactor unit = factor(type, kDepth, kDepth, {false, true, 0});
    const bool is_along_k = is_left ? ta == Transpose::no : tb == Transpose::yes;
    std::vector<Q> q(kCount * kDepth), one(kDepth * kDepth, Q(0.0F));
    std::vector<float> scales(static_cast<size_t>(codes.outer.back() + codes.inner.back() + 1)), c(kCount * kDepth, NAN);
    for (size_t i = 0; i < scales.size(); ++i) scales[i] = std::ldexp(1.0F, static_cast<int>(i * 5 % 200) - 100);
    for (int64_t k = 0; k < kDepth; ++k) one[static_cast<size_t>(k * kDepth + k)] = Q(1.0F);
    const auto at = [&](int64_t i, int64_t k) -> Q& {
        return q[static_cast<size_t>(is_along_k ? i * kDepth + k : k * kCount + i)];
    };
    for (int64_t i = 0; i < kCount; ++i) {
        for (int64_t k = 0; k < kDepth; ++k) {
            Q& code = at(i, k);
            code.bits = static_cast<uint8_t>((i * kDepth + k) * 7);
            if (!std::isfinite(static_cast<float>(code))) code = Q(0.0F);  // it would be in the sums of a row
        }
    }
    constexpr int64_t kNan = 41;
    at(kNan, 50) = Q(NAN);
    const ScaledMatmul product(s, is_left ? codes : unit, is_left ? unit : codes, 1, kernel);
    ThreadPool pool(1);
    AlignedBytes workspace(product.workspace_bytes());
    const float of_unit = 1;
    if (is_left) product.run(pool, q.data(), one.data(), scales.data(), &of_unit, c.data(), nullptr, workspace.data.get());
    else product.run(pool, one.data(), q.data(), &of_unit, scales.data(), c.data(), nullptr, workspace.data.get());
    for (int64_t i = 0; i < kCount; ++i) {
        for (int64_t k = 0; k < kDepth; ++k) {
            const float got = c[static_cast<size_t>(is_left ? i * kDepth + k : k * kCount + i)];
            const auto scale = static_cast<size_t>(codes.outer[static_cast<size_t>(i)] + codes.inner[static_cast<size_t>(k)]);
            if (i == kNan) ASSERT_TRUE(std::isnan(got)) << k;
            else ASSERT_EQ(got, static_cast<float>(at(i, k)) * scales[scale]) << i << " " << k;
        }
    }
}

TEST(CpuFloat8, ProductsKeepEveryCode) {
    on_every_isa([](const char* isa) {
        SCOPED_TRACE(isa);
        for (const MatmulKernel kernel : {MatmulKernel::packed, MatmulKernel::bf16_dot, MatmulKernel::amx}) {
            if (kernel == MatmulKernel::amx && !has_amx()) continue;
            for (const Transpose ta : {Transpose::no, Transpose::yes}) {
                for (const Transpose tb : {Transpose::no, Transpose::yes}) {
                    for (const int which : {0, 1, 2, 3}) {
                        expect_codes_in_product<F8E4M3>(kernel, ta, tb, which % 2 == 0, which < 2);
                        expect_codes_in_product<F8E5M2>(kernel, ta, tb, which % 2 == 0, which < 2);
                    }
                }
            }
        }
    });
}

}  // namespace
}  // namespace lockstep::kernels::cpu
