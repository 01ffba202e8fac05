// Scales and casts of float8 of a GPU, on the emulator, at the shapes that choose their paths: the bits of plain loops.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/gpu/emulator.h"
#include "kernels/gpu/float8.h"

namespace lockstep::testing {
namespace {

using namespace kernels::gpu;
using emulator::Order;

// Sizes from 2^-30 to 2^10; some zeros, infinities and NaNs.
template <class T>
std::vector<T> draw_values(int64_t n, unsigned seed, bool has_all = true) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<T> x;
    for (int64_t i = 0; i < n; ++i) x.push_back(T(std::ldexp(normal(random), static_cast<int>(random() % 40) - 30)));
    for (int64_t i = 5; has_all && i < n; i += 997) x[static_cast<size_t>(i)] = T(i % 2 ? 0.0F : i % 3 ? INFINITY : NAN);
    return x;
}
template <class T>
float at(const std::vector<T>& x, int64_t i) {
    return static_cast<float>(x[static_cast<size_t>(i)]);
}
template <class T>
void expect_bits(const std::vector<T>& got, const std::vector<T>& want, const std::string& what) {
    ASSERT_EQ(got.size(), want.size()) << what;
    for (size_t i = 0; i < got.size(); ++i)
        ASSERT_EQ(std::memcmp(&got[i], &want[i], sizeof got[i]), 0)
            << what << ", " << i << ": " << static_cast<float>(got[i]) << ", not " << static_cast<float>(want[i]);
}

float size_or_nan(float most, float x) { return std::isnan(x) || std::abs(x) > most ? std::abs(x) : most; }

// ---- Blocks.

template <class Q, class S>
void encode_block(float amax, BlockRounding rounding, float& by, S& s) {
    if constexpr (std::is_same_v<S, E8M0>) {
        s = block_scale(static_cast<double>(amax), Q::kLargest, rounding);
        by = s.reciprocal();
    } else {
        by = scale_of(static_cast<double>(amax), Q::kLargest, false);
        s = 1 / by;
    }
}

template <class T, class Q, class S>
void expect_blocks(const Blocks& b, BlockRounding rounding, int64_t shift = 0) {
    const int64_t n = b.count * b.size * b.columns;
    std::vector<T> x = draw_values<T>(n + shift, static_cast<unsigned>(n));
    if (!std::is_same_v<S, E8M0>) {  // a NaN's sign is the GPU's own
        for (T& v : x) v = std::isfinite(static_cast<float>(v)) ? v : T(1.0F);
    }
    std::vector<Q> want(static_cast<size_t>(n));
    std::vector<S> scales(static_cast<size_t>(b.count * b.columns));
    for (int64_t i = 0; i < b.count; ++i) {
        for (int64_t c = 0; c < b.columns; ++c) {
            float most = 0, by = 0;
            const auto element = [&](int64_t k) { return (i * b.size + k) * b.columns + c; };
            for (int64_t k = 0; k < b.size; ++k) most = std::isnan(most) ? most : size_or_nan(most, at(x, shift + element(k)));
            encode_block<Q, S>(most, rounding, by, scales[static_cast<size_t>(i * b.columns + c)]);
            for (int64_t k = 0; k < b.size; ++k) want[static_cast<size_t>(element(k))] = Q(at(x, shift + element(k)) * by);
        }
    }
    for (const Order order : {Order::Ascending, Order::Descending, Order::Shuffled}) {
        emulator::set_order(order, 7);
        std::vector<Q> q(want.size() + 1, Q(1.0F));
        std::vector<S> s(scales.size());
        to_blocks(nullptr, b, rounding, x.data() + shift, q.data(), s.data());
        EXPECT_EQ(static_cast<float>(q.back()), 1.0F) << "written past the end";
        q.pop_back();
        const std::string what = std::to_string(b.count) + " x " + std::to_string(b.size) + " x " + std::to_string(b.columns);
        for (size_t i = 0; i < q.size(); ++i) {
            if (std::isnan(static_cast<float>(want[i]))) ASSERT_TRUE(std::isnan(static_cast<float>(q[i]))) << what;
            else ASSERT_EQ(q[i].bits, want[i].bits) << what << ", " << i;
        }
        expect_bits(s, scales, what);
    }
}

template <class T>
class GpuFloat8Kernels : public ::testing::Test {};
using Stored = ::testing::Types<float, Bf16, F16>;
TYPED_TEST_SUITE(GpuFloat8Kernels, Stored);

TYPED_TEST(GpuFloat8Kernels, BlocksHaveTheBitsOfPlainLoops) {
    using T = TypeParam;
    // Neighbours, which threads share or not; columns, in tiles that are full or not, and of more rows than a tile of scales has.
    for (const Blocks& b : {Blocks{300, 32, 1}, Blocks{70, 128, 1}, Blocks{3, 16, 1}, Blocks{9, 48, 1}, Blocks{11, 3, 1},
                            Blocks{2, 32, 528}, Blocks{3, 128, 64}, Blocks{2, 32, 37}, Blocks{1, 300, 16}, Blocks{2, 5, 2}}) {
        for (const BlockRounding rounding : {BlockRounding::floor, BlockRounding::rceil}) {
            expect_blocks<T, F8E4M3, E8M0>(b, rounding);
            expect_blocks<T, F8E5M2, E8M0>(b, rounding);
        }
        expect_blocks<T, F8E4M3, float>(b, BlockRounding::floor);
        expect_blocks<T, F8E5M2, float>(b, BlockRounding::floor);
    }
    expect_blocks<T, F8E4M3, E8M0>({300, 32, 1}, BlockRounding::floor, 1);  // addresses that are no multiples of 16
    expect_blocks<T, F8E4M3, float>({2, 32, 64}, BlockRounding::floor, 1);
}

// ---- Groups.

// Elements of `rows` rows, and the group of each.
struct GroupsOf {
    const char* name;
    Grouping grouping;
    int64_t n;
};
std::vector<GroupsOf> groups_of_all_walks() {
    std::vector<GroupsOf> all;
    const auto add = [&](const char* name, int64_t n, int64_t columns, int64_t run, std::vector<Grouping::Dim> dims) {
        Grouping g;
        g.columns = columns, g.run = run, g.dims = static_cast<int>(dims.size());
        int64_t groups = 1;
        for (size_t d = 0; d < dims.size(); ++d) {
            g.of[d] = dims[d];
            groups *= dims[d].stride == 0 ? 1 : dims[d].size / dims[d].each;
        }
        g.count = groups * columns;
        all.push_back({name, g, n});
    };
    add("whole", 5000, 1, 5000, {});
    add("rows", 3 * 4096, 1, 4096, {{3, 1, 1}});
    add("rows with a rest", 7 * 2500, 1, 2500, {{7, 1, 1}});
    add("tiles of 128", 256 * 384, 1, 128, {{3, 1, 1}, {256, 128, 3}});
    add("short rows", 40 * 48, 1, 48, {{40, 1, 1}});
    add("odd rows", 40 * 7, 1, 7, {{40, 1, 1}});
    add("columns", 200 * 528, 528, 200, {});
    add("odd columns", 70 * 37, 37, 70, {});
    add("columns of groups", 6 * 96 * 64, 64, 96, {{2, 1, 64}, {3, 1, 128}});
    add("columns of one row", 9 * 32, 32, 1, {{9, 1, 32}});
    return all;
}
int64_t group_of_element(const Grouping& g, int64_t i) {
    int64_t run = i / g.columns / g.run, at = i % g.columns;
    for (int d = 0; d < g.dims; ++d) {
        at += run % g.of[d].size / g.of[d].each * g.of[d].stride;
        run /= g.of[d].size;
    }
    return at;
}

TYPED_TEST(GpuFloat8Kernels, EachWalkHasTheBitsOfPlainLoops) {
    using T = TypeParam;
    for (const GroupsOf& one : groups_of_all_walks()) {
        const Grouping& g = one.grouping;
        const auto count = static_cast<size_t>(g.count), n = static_cast<size_t>(one.n);
        const std::vector<T> x = draw_values<T>(one.n, 3, false);
        std::vector<float> most(count, 0), s(count);
        std::vector<E8M0> powers(count);
        std::vector<F8E4M3> codes(n);
        std::vector<T> back(n), of_powers(n), scaled(n);
        const std::vector<float> sums(x.begin(), x.end());
        for (int64_t i = 0; i < one.n; ++i) {
            float& own = most[static_cast<size_t>(group_of_element(g, i))];
            own = size_or_nan(own, at(x, i));
        }
        for (size_t k = 0; k < count; ++k) {
            s[k] = 1 / scale_of(static_cast<double>(most[k]), F8E4M3::kLargest, true);
            powers[k].bits = static_cast<uint8_t>(100 + k % 50);
        }
        for (int64_t i = 0; i < one.n; ++i) {
            const auto k = static_cast<size_t>(group_of_element(g, i)), e = static_cast<size_t>(i);
            codes[e] = F8E4M3(at(x, i) * scale_of(static_cast<double>(most[k]), F8E4M3::kLargest, true));
            back[e] = T(static_cast<float>(codes[e]) * s[k]);
            of_powers[e] = T(static_cast<float>(codes[e]) * static_cast<float>(powers[k]));
            scaled[e] = T(sums[e] * s[k] * s[0]);
        }
        Grouping whole;
        whole.run = one.n;
        for (const Order order : {Order::Ascending, Order::Descending, Order::Shuffled}) {
            emulator::set_order(order, 11);
            std::vector<float> found(count, 0), scales(count);
            std::vector<F8E4M3> q(n);
            std::vector<T> y(n);
            amax(nullptr, one.n, g, x.data(), found.data());
            expect_bits(found, most, one.name);
            to_float8(nullptr, one.n, g, true, x.data(), most.data(), q.data(), scales.data());
            expect_bits(q, codes, one.name);
            expect_bits(scales, s, one.name);
            from_float8(nullptr, one.n, g, q.data(), s.data(), y.data());
            expect_bits(y, back, one.name);
            from_float8(nullptr, one.n, g, q.data(), powers.data(), y.data());
            expect_bits(y, of_powers, one.name);
            apply_scales(nullptr, one.n, g, whole, sums.data(), s.data(), s.data(), y.data());
            expect_bits(y, scaled, one.name);
        }
    }
}

// ---- Scales for a library.

template <class S>
void expect_order(Factors f, const std::vector<int64_t>& want) {
    ASSERT_EQ(f.count(), std::ssize(want));
    const auto value = [](int64_t i) { return S(std::ldexp(1.0F, static_cast<int>(i % 90) - 40)); };
    std::vector<S> scales, out(want.size() + 1, S(4.0F));
    for (int64_t i = 0; i < f.rows * f.blocks; ++i) scales.push_back(value(i));
    put_in_order(nullptr, f, scales.data(), out.data());
    for (size_t i = 0; i < want.size(); ++i) {
        const S expected = want[i] < 0 ? S{} : value(want[i]);
        ASSERT_EQ(std::memcmp(&out[i], &expected, sizeof expected), 0) << f.rows << " x " << f.blocks << ", " << i;
    }
    EXPECT_EQ(static_cast<float>(out.back()), 4.0F) << "written past the end";
}

TEST(GpuFloat8Factors, AreInTheOrderOfTheLibrary) {
    using Order = Factors::Order;
    for (const auto& [rows, blocks] : {std::pair<int64_t, int64_t>{1, 1}, {48, 3}, {128, 4}, {300, 9}, {5, 8}}) {
        for (const bool is_turned : {false, true}) {
            Factors f{Order::BlocksOfRows, rows, blocks, is_turned ? 1 : blocks, is_turned ? rows : 1};
            const auto from = [&f](int64_t row, int64_t block) {
                return row >= f.rows || block >= f.blocks ? -1 : row * f.row_stride + block * f.block_stride;
            };
            std::vector<int64_t> want;
            for (int64_t b = 0; b < blocks; ++b) {
                for (int64_t r = 0; r < rows; ++r) want.push_back(from(r, b));
            }
            EXPECT_EQ(f.is_in_order(), rows == 1 || blocks == 1 || is_turned);
            expect_order<float>(f, want);
            f.order = Order::RowsOfFour, want.clear();
            for (int64_t r = 0; r < rows; ++r) {
                for (int64_t b = 0; b < (blocks + 3) / 4 * 4; ++b) want.push_back(from(r, b));
            }
            const bool is_in_order = (rows == 1 || blocks % 4 == 0) && (!is_turned || rows == 1 || blocks == 1);
            EXPECT_EQ(f.is_in_order(), is_in_order) << rows << " x " << blocks;
            expect_order<float>(f, want);
            f.order = Order::Tiles, want.clear();
            for (int64_t top = 0; top < rows; top += 128) {
                for (int64_t left = 0; left < blocks; left += 4) {
                    for (int64_t at = 0; at < 512; ++at) want.push_back(from(top + at % 16 / 4 * 32 + at / 16, left + at % 4));
                }
            }
            EXPECT_FALSE(f.is_in_order());
            expect_order<E8M0>(f, want);
        }
    }
    const Factors one{Order::BlocksOfRows, 3, 1, 0, 1};  // a scale of all, for each row
    EXPECT_FALSE(one.is_in_order());
    expect_order<float>(one, {0, 0, 0});
}

}  // namespace
}  // namespace lockstep::testing
