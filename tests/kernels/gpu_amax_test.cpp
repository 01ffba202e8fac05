// Kernels that also give the largest sizes of their results, on the emulator: those sizes have the bits that amax() finds in
// memory, and the results those of the kernel without them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/gpu/elementwise.h"
#include "kernels/gpu/emulator.h"
#include "kernels/gpu/float8.h"
#include "kernels/gpu/norm.h"

namespace lockstep::testing {
namespace {

using namespace kernels::gpu;
using emulator::Order;

template <class T>
std::vector<T> normal_values(int64_t n, unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<T> x;
    for (int64_t i = 0; i < n; ++i) x.push_back(T(normal(random)));
    return x;
}

// Groups of `of_group` rows, of `rows` rows of n elements.
Grouping groups_of_rows(int64_t rows, int64_t n, int64_t of_group) {
    Grouping g;
    g.run = of_group * n, g.count = rows / of_group;
    if (g.count > 1) g.dims = 1, g.of[0] = {g.count, 1, 1};
    return g;
}

template <class T>
void expect_same_bits(const std::vector<T>& got, const std::vector<T>& want, const std::string& what) {
    ASSERT_EQ(got.size(), want.size()) << what;
    EXPECT_EQ(std::memcmp(got.data(), want.data(), got.size() * sizeof(T)), 0) << what;
}
// The amax of x that a kernel gave.
template <class T>
void expect_amax(const std::vector<T>& x, const Grouping& g, const std::vector<float>& got, const std::string& what) {
    std::vector<float> want(static_cast<size_t>(g.count));
    amax(nullptr, static_cast<int64_t>(x.size()), g, x.data(), want.data());
    EXPECT_GT(want[0], 0) << what;
    expect_same_bits(got, want, what);
}

struct RowsOfAmax {
    int64_t rows, n, of_group;
};
// Rows of one warp, of a block, of several pieces, of any length, and such as are read one element at a time.
const std::vector<RowsOfAmax> kRowsOfAmax = {{24, 64, 24}, {24, 64, 4},    {600, 64, 1}, {12, 1000, 3}, {8, 2048, 8},
                                             {6, 4096, 2}, {4, 20'000, 2}, {9, 37, 3},   {3, 40'000, 1}};

template <class T>
void expect_amax_of_norms(const RowsOfAmax& shape) {
    const auto [rows, n, of_group] = shape;
    const std::string what = fmt::format("{} rows of {}, {} a group", rows, n, of_group);
    const Grouping g = groups_of_rows(rows, n, of_group);
    const std::vector<T> x = normal_values<T>(rows * n, 1), residual = normal_values<T>(rows * n, 2), w = normal_values<T>(n, 3);
    const size_t elements = x.size();
    for (const bool adds : {false, true}) {
        std::vector<T> s(elements), y(elements), plain_s(elements), plain_y(elements);
        std::vector<float> rstd(static_cast<size_t>(rows)), plain_rstd(rstd.size()), found(static_cast<size_t>(g.count));
        rms_norm_amax(nullptr, rows, n, x.data(), adds ? residual.data() : nullptr, w.data(), 1e-5F, adds ? s.data() : nullptr,
                      y.data(), rstd.data(), g, found.data());
        if (adds)
            add_rms_norm(nullptr, rows, n, x.data(), residual.data(), w.data(), 1e-5F, plain_s.data(), plain_y.data(),
                         plain_rstd.data());
        else rms_norm(nullptr, rows, n, x.data(), w.data(), 1e-5F, plain_y.data(), plain_rstd.data());
        expect_same_bits(y, plain_y, what), expect_same_bits(s, plain_s, what), expect_same_bits(rstd, plain_rstd, what);
        expect_amax(y, g, found, what);
    }
}

template <class T>
void expect_amax_of_swiglu(const RowsOfAmax& shape) {
    const auto [rows, n, of_group] = shape;
    const std::string what = fmt::format("{} rows of {}, {} a group", rows, n, of_group);
    const Grouping g = groups_of_rows(rows, n, of_group), of_both = groups_of_rows(rows, 2 * n, of_group);
    const std::vector<T> both = normal_values<T>(2 * rows * n, 4), dy = normal_values<T>(rows * n, 5);
    const auto count = static_cast<size_t>(g.count);
    std::vector<T> y(dy.size()), plain_y(dy.size()), d(both.size()), plain_d(both.size());
    std::vector<float> of_y(count), of_d(count);
    swiglu_packed_amax(nullptr, rows, n, both.data(), y.data(), g, of_y.data());
    swiglu_packed(nullptr, rows, n, both.data(), plain_y.data());
    expect_same_bits(y, plain_y, what);
    expect_amax(y, g, of_y, what);
    for (const bool again : {false, true}) {
        T* const to = again ? y.data() : nullptr;
        for (const bool wants_d : {true, false}) {
            if (!again && !wants_d) continue;
            of_y.assign(count, 0), of_d.assign(count, 0), y.assign(y.size(), T(0.0F));
            swiglu_packed_backward_amax(nullptr, rows, n, dy.data(), both.data(), d.data(), to, g,
                                        wants_d ? of_d.data() : nullptr, again ? of_y.data() : nullptr);
            swiglu_packed_backward(nullptr, rows, n, dy.data(), both.data(), plain_d.data(), again ? plain_y.data() : nullptr);
            expect_same_bits(d, plain_d, what);
            if (wants_d) expect_amax(d, of_both, of_d, what);
            if (again) expect_same_bits(y, plain_y, what), expect_amax(y, g, of_y, what);
        }
    }
}

TEST(GpuAmax, IsThatOfTheResultsInMemory) {
    for (const Order order : {Order::Ascending, Order::Descending, Order::Shuffled}) {
        emulator::set_order(order, 5);
        for (const RowsOfAmax& shape : kRowsOfAmax) {
            expect_amax_of_norms<float>(shape), expect_amax_of_norms<Bf16>(shape), expect_amax_of_norms<F16>(shape);
            expect_amax_of_swiglu<float>(shape), expect_amax_of_swiglu<Bf16>(shape), expect_amax_of_swiglu<F16>(shape);
        }
    }
    emulator::set_order(Order::Ascending);
}

TEST(GpuAmax, OfARowWithNaNIsNaN) {
    std::vector<Bf16> both = normal_values<Bf16>(4 * 2 * 64, 6), y(4 * 64);
    both[2 * 64 + 3] = Bf16(NAN);  // of the second row
    std::vector<float> found(4);
    swiglu_packed_amax(nullptr, 4, 64, both.data(), y.data(), groups_of_rows(4, 64, 1), found.data());
    EXPECT_TRUE(std::isnan(found[1]));
    for (const size_t other : {0, 2, 3}) EXPECT_GT(found[other], 0);
}

}  // namespace
}  // namespace lockstep::testing
