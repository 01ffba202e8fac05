// Norms, losses and sums of a GPU, on the emulator, in the shapes that choose their paths: short and long rows, wide and narrow
// accesses, rows longer than what a thread keeps, more rows than blocks.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/gpu/emulator.h"
#include "kernels/gpu/loss.h"
#include "kernels/gpu/movement.h"
#include "kernels/gpu/norm.h"
#include "kernels/gpu/tokens.h"
#include "kernels/gpu/update.h"

namespace lockstep::testing {
namespace {

using namespace kernels::gpu;
using emulator::Order;

std::vector<float> draw(size_t n, unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> x(n);
    for (float& v : x) v = normal(random);
    return x;
}

// The largest difference, over the largest value; infinite where something is not a number.
double error(const std::vector<float>& got, const std::vector<double>& want) {
    double worst = got.size() == want.size() ? 0 : INFINITY, most = 1e-30;
    for (size_t i = 0; i < want.size(); ++i) {
        const double apart = std::abs(got[i] - want[i]);
        if (!(apart <= worst)) worst = std::isnan(apart) ? INFINITY : apart;
        most = std::max(most, std::abs(want[i]));
    }
    return worst / most;
}

struct Shape {
    int64_t rows, n;
};
const std::vector<Shape> kShapes = {{5, 8},    {9, 7},    {300, 64}, {3, 125},  {12, 1024},
                                    {4, 1025}, {3, 1032}, {2, 8192}, {2, 8200}, {2, 9001}};

struct NormResults {
    std::vector<float> y, mean, rstd, dx, dw, db;
    bool operator==(const NormResults&) const = default;
};

NormResults run(const Shape& z, bool centered, const std::vector<float>& x, const std::vector<float>& w,
                const std::vector<float>& b, const std::vector<float>& dy) {
    const auto rows = static_cast<size_t>(z.rows), n = static_cast<size_t>(z.n);
    NormResults r;
    r.y.resize(rows * n), r.mean.resize(rows), r.rstd.resize(rows), r.dx.resize(rows * n), r.dw.assign(n, 0.5f), r.db.resize(n);
    std::vector<float> sums(static_cast<size_t>(norm_backward_workspace_bytes(z.rows, z.n, 2)) / sizeof(float));
    const float* const none = nullptr;
    if (centered) {
        layer_norm(nullptr, z.rows, z.n, x.data(), w.data(), b.data(), 1e-5f, r.y.data(), r.mean.data(), r.rstd.data());
        layer_norm_backward(nullptr, z.rows, z.n, dy.data(), x.data(), w.data(), r.mean.data(), r.rstd.data(), none, r.dx.data(),
                            r.dw.data(), true, r.db.data(), sums.data());
    } else {
        rms_norm(nullptr, z.rows, z.n, x.data(), w.data(), 1e-5f, r.y.data(), r.rstd.data());
        rms_norm_backward(nullptr, z.rows, z.n, dy.data(), x.data(), w.data(), r.rstd.data(), none, r.dx.data(), r.dw.data(),
                          true, sums.data());
    }
    return r;
}

TEST(GpuNorms, EveryPathAgreesWithDouble) {
    for (const Shape& z : kShapes) {
        for (const bool centered : {false, true}) {
            const std::string what =
                std::to_string(z.rows) + " x " + std::to_string(z.n) + (centered ? ", LayerNorm" : ", RMSNorm");
            const auto rows = static_cast<size_t>(z.rows), n = static_cast<size_t>(z.n);
            const std::vector<float> x = draw(rows * n, 1), w = draw(n, 2), b = draw(n, 3), dy = draw(rows * n, 4);
            std::vector<double> y(rows * n), dx(rows * n), dw(n, 0.5), db(n);
            for (size_t r = 0; r < rows; ++r) {
                double mean = 0, squares = 0, of_g = 0, of_gx = 0;
                for (size_t i = 0; i < n; ++i) mean += centered ? x[r * n + i] / static_cast<double>(n) : 0;
                for (size_t i = 0; i < n; ++i) squares += (x[r * n + i] - mean) * (x[r * n + i] - mean);
                const double rstd = 1 / std::sqrt(squares / static_cast<double>(n) + 1e-5);
                for (size_t i = 0; i < n; ++i) {
                    const double normal = (x[r * n + i] - mean) * rstd, grad = dy[r * n + i];
                    y[r * n + i] = normal * w[i] + (centered ? b[i] : 0);
                    of_g += centered ? grad * w[i] / static_cast<double>(n) : 0,
                        of_gx += grad * w[i] * normal / static_cast<double>(n);
                    dw[i] += grad * normal, db[i] += grad;
                }
                for (size_t i = 0; i < n; ++i)
                    dx[r * n + i] =
                        rstd * (dy[r * n + i] * static_cast<double>(w[i]) - of_g - (x[r * n + i] - mean) * rstd * of_gx);
            }
            emulator::set_order(Order::Ascending);
            const NormResults got = run(z, centered, x, w, b, dy);
            EXPECT_LE(error(got.y, y), 2e-6) << what;
            EXPECT_LE(error(got.dx, dx), 4e-6) << what;
            EXPECT_LE(error(got.dw, dw), 4e-6) << what;
            if (centered) {
                EXPECT_LE(error(got.db, db), 4e-6) << what;
            }
            for (const Order order : {Order::Descending, Order::Shuffled}) {
                emulator::set_order(order, 11);
                EXPECT_TRUE(run(z, centered, x, w, b, dy) == got) << what << ": another order of warps gives other bits";
            }
        }
    }
}

TEST(GpuLoss, EveryPathAgreesWithDouble) {
    for (const Shape& z : kShapes) {
        const auto rows = static_cast<size_t>(z.rows), n = static_cast<size_t>(z.n);
        const std::vector<float> logits = draw(rows * n, 5), d_z = draw(rows, 6), d_t = draw(rows, 7);
        std::vector<int32_t> targets(rows);
        for (size_t r = 0; r < rows; ++r) targets[r] = r % 3 == 2 ? -1 : static_cast<int32_t>(100 + r * 31 % (n + 2));
        constexpr int64_t kFirst = 100;
        std::vector<double> m(rows, -INFINITY), sums(rows), t(rows), d(rows * n);
        for (size_t r = 0; r < rows; ++r) {
            for (size_t i = 0; i < n; ++i) m[r] = std::max<double>(m[r], logits[r * n + i]);
            for (size_t i = 0; i < n; ++i) {
                const double e = std::exp(logits[r * n + i] - m[r]);
                const bool is_target = targets[r] >= 0 && static_cast<int64_t>(i) == targets[r] - kFirst;
                sums[r] += e, t[r] += is_target ? logits[r * n + i] : 0;
                d[r * n + i] = e * d_z[r] + (is_target ? d_t[r] : 0);
            }
        }
        std::vector<float> first;
        for (const Order order : {Order::Ascending, Order::Descending, Order::Shuffled}) {
            emulator::set_order(order, 11);
            std::vector<float> most(rows), got_z(rows), got_t(rows), got_d(rows * n);
            row_max(nullptr, z.rows, z.n, logits.data(), most.data());
            cross_entropy(nullptr, z.rows, z.n, logits.data(), most.data(), targets.data(), kFirst, got_z.data(), got_t.data());
            cross_entropy_backward(nullptr, z.rows, z.n, d_z.data(), d_t.data(), logits.data(), most.data(), targets.data(),
                                   kFirst, got_d.data());
            EXPECT_EQ(error(most, m), 0) << z.n;
            EXPECT_LE(error(got_z, sums), 1e-6) << z.n;
            EXPECT_EQ(error(got_t, t), 0) << z.n;
            EXPECT_LE(error(got_d, d), 1e-6) << z.n;
            if (order == Order::Ascending) first = got_z;
            EXPECT_EQ(got_z, first) << z.n;
        }
    }
}

// Rows of one and of four bytes a thread's access, that a block of 256 threads has and one of 1,024, that fit into shared memory
// and that do not; with padding.
TEST(GpuLoss, WithTheGradientInOneKernel) {
    for (const Shape& z : {Shape{5, 8}, {9, 7}, {4, 1025}, {3, 8192}, {3, 8200}, {2, 41000}, {2, 43008}}) {
        const auto rows = static_cast<size_t>(z.rows), n = static_cast<size_t>(z.n);
        std::vector<float> logits = draw(rows * n, 5);
        for (size_t r = 0; r < rows; ++r) std::fill(&logits[(r + 1) * n] - 3, &logits[(r + 1) * n], -INFINITY);
        const std::vector<float> d_nll = draw(rows, 6), d_t = draw(rows, 7);
        std::vector<int32_t> targets(rows);
        for (size_t r = 0; r < rows; ++r) targets[r] = r % 3 == 2 ? -1 : static_cast<int32_t>(r * 31 % (n - 3));
        std::vector<double> m(rows, -INFINITY), sums(rows), t(rows), d(rows * n);
        for (size_t r = 0; r < rows; ++r) {
            for (size_t i = 0; i < n; ++i) m[r] = std::max<double>(m[r], logits[r * n + i]);
            for (size_t i = 0; i < n; ++i) sums[r] += std::exp(logits[r * n + i] - m[r]);
            for (size_t i = 0; i < n; ++i) {
                const bool is_target = static_cast<int64_t>(i) == targets[r];
                t[r] += is_target ? logits[r * n + i] : 0;
                d[r * n + i] = std::exp(logits[r * n + i] - m[r]) * d_nll[r] / sums[r] + (is_target ? d_t[r] : 0);
            }
        }
        std::vector<float> first_z, first_d;
        for (const Order order : {Order::Ascending, Order::Descending, Order::Shuffled}) {
            emulator::set_order(order, 11);
            std::vector<float> most(rows), got_z(rows), got_t(rows), got_d = logits;
            cross_entropy_gradient(nullptr, z.rows, z.n, d_nll.data(), d_t.data(), got_d.data(), targets.data(), most.data(),
                                   got_z.data(), got_t.data(), got_d.data());
            EXPECT_EQ(error(most, m), 0) << z.n;
            EXPECT_LE(error(got_z, sums), 1e-6) << z.n;
            EXPECT_EQ(error(got_t, t), 0) << z.n;
            EXPECT_LE(error(got_d, d), 1e-6) << z.n;
            if (order == Order::Ascending) first_z = got_z, first_d = got_d;
            EXPECT_EQ(got_z, first_z) << z.n;
            EXPECT_EQ(got_d, first_d) << z.n;
        }
    }
    std::vector<float> logits(1032, 1.0f), m(1), z(1), t(1), d(1032);
    const std::vector<float> one = {1.0f};
    const std::vector<int32_t> target = {3};
    logits[20] = NAN;
    cross_entropy_gradient(nullptr, 1, 1032, one.data(), one.data(), logits.data(), target.data(), m.data(), z.data(), t.data(),
                           d.data());
    EXPECT_TRUE(std::isnan(z[0]));
}

// More rows of the table than blocks share and more tokens than a block lists at once; more columns than one block has.
TEST(GpuEmbedding, BackwardAddsInTheOrderOfTokens) {
    struct Case {
        int64_t hidden, rows, tokens;
    };
    for (const auto [hidden, rows, tokens] : {Case{40, 1100, 2100}, Case{2056, 200, 90}}) {
        constexpr int64_t kFirst = 50;
        std::vector<int32_t> ids(static_cast<size_t>(tokens));
        for (size_t t = 0; t < ids.size(); ++t)
            ids[t] = static_cast<int32_t>(kFirst - 3 + static_cast<int64_t>(t * t % 29) * (rows / 25));
        const std::vector<float> d = draw(static_cast<size_t>(tokens * hidden), 9);
        for (const bool adds : {false, true}) {
            std::vector<float> want(static_cast<size_t>(rows * hidden), adds ? 0.5f : 0.0f);
            for (size_t t = 0; t < ids.size(); ++t) {
                const int64_t row = ids[t] - kFirst;
                if (row < 0 || row >= rows) continue;
                for (int64_t i = 0; i < hidden; ++i)
                    want[static_cast<size_t>(row * hidden + i)] += d[t * static_cast<size_t>(hidden) + static_cast<size_t>(i)];
            }
            for (const Order order : {Order::Ascending, Order::Descending, Order::Shuffled}) {
                emulator::set_order(order, 11);
                std::vector<float> got(want.size(), 0.5f);
                embedding_backward(nullptr, tokens, hidden, ids.data(), kFirst, rows, d.data(), got.data(), adds);
                EXPECT_TRUE(got == want) << hidden << (adds ? ", added" : "");
            }
        }
    }
}

TEST(GpuColumns, OfLongAndShortRowsAgreeWithDouble) {
    for (const Shape& z : kShapes) {
        const auto rows = static_cast<size_t>(z.rows), n = static_cast<size_t>(z.n);
        const std::vector<float> x = draw(rows * n, 10);
        std::vector<double> want(n, 0.5);
        for (size_t i = 0; i < x.size(); ++i) want[i % n] += x[i];
        std::vector<std::vector<float>> got;
        for (const Order order : {Order::Ascending, Order::Descending, Order::Shuffled}) {
            emulator::set_order(order, 11);
            std::vector<float> sums(static_cast<size_t>(sum_rows_workspace_bytes(z.rows, z.n)) / sizeof(float));
            got.emplace_back(n, 0.5f);
            sum_rows(nullptr, z.rows, z.n, x.data(), got.back().data(), true, sums.data());
        }
        EXPECT_LE(error(got[0], want), 2e-6) << z.rows << " x " << z.n;
        EXPECT_TRUE(got[0] == got[1] && got[0] == got[2]) << z.rows << " x " << z.n;
    }
}

TEST(GpuSumOfSquares, OfManyBlocksHasOneOrder) {
    for (const int64_t n : {int64_t{1}, int64_t{1000}, int64_t{40001}, int64_t{16384 * 3}}) {
        const std::vector<float> x = draw(static_cast<size_t>(n), 8);
        double want = 3;
        for (float v : x) want += static_cast<double>(v) * v;
        std::vector<double> totals;
        for (const Order order : {Order::Ascending, Order::Descending, Order::Shuffled}) {
            emulator::set_order(order, 11);
            std::vector<double> sums(static_cast<size_t>(sum_of_squares_workspace_bytes(n)) / sizeof(double));
            double total = 3;
            sum_of_squares(nullptr, n, x.data(), true, true, &total, sums.data());
            EXPECT_NEAR(total, want, 1e-12 * want) << n;
            totals.push_back(total);
            sum_of_squares(nullptr, n, x.data(), false, false, &total, sums.data());
            EXPECT_EQ(total, 0) << n;
        }
        EXPECT_EQ(totals[0], totals[1]) << n;
        EXPECT_EQ(totals[0], totals[2]) << n;
    }
}

TEST(GpuMovement, TransposesEachMatrix) {
    constexpr int64_t kCount = 3, kRows = 70, kColumns = 12;
    const std::vector<float> x = draw(kCount * kRows * kColumns, 5);
    std::vector<float> out(x.size(), NAN);
    transpose(nullptr, kCount, kRows, kColumns, x.data(), out.data());
    for (int64_t m = 0; m < kCount; ++m) {
        for (int64_t r = 0; r < kRows; ++r) {
            for (int64_t c = 0; c < kColumns; ++c)
                EXPECT_EQ(out[(m * kColumns + c) * kRows + r], x[(m * kRows + r) * kColumns + c]) << m << " " << r << " " << c;
        }
    }
}

}  // namespace
}  // namespace lockstep::testing
