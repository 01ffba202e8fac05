// Norms, losses and sums of a GPU, on the emulator, in the shapes that choose their paths: short and long rows, wide and narrow
// accesses, rows longer than what a thread keeps, more rows than blocks.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/gpu/columns.h"
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

// As the elements are stored; then everything in float.
template <class S>
std::vector<S> stored(const std::vector<float>& x) {
    return {x.begin(), x.end()};
}
std::vector<float> widened(const std::vector<Bf16>& x) { return {x.begin(), x.end()}; }
std::vector<float> widened(const std::vector<float>& x) { return x; }

struct Shape {
    int64_t rows, n;
};
const std::vector<Shape> kShapes = {{5, 8},    {9, 7},    {300, 64}, {3, 125},  {12, 1024},
                                    {4, 1025}, {3, 1032}, {2, 8192}, {2, 8200}, {2, 9001}};

// Rows of each number of pieces that kernels know when they are compiled, and longer ones; with an odd number of elements, too.
const std::vector<Shape> kNormShapes = {{5, 8},    {9, 7},    {40, 128}, {3, 125},  {4, 768},  {12, 1024}, {4, 1025}, {3, 1032},
                                        {5, 1600}, {3, 2048}, {7, 3000}, {3, 4096}, {2, 8192}, {2, 8200},  {2, 9001}};
// More rows than blocks, which go on to other rows: backward, and in the last shape forward.
const std::vector<Shape> kManyRows = {{3200, 128}, {540, 768}, {270, 4096}, {270, 8192}};

struct NormOperands {
    std::vector<float> x, residual, w, b, dy, also;
};
struct NormResults {
    std::vector<float> s, y, mean, rstd, dx, dw, db;
    bool operator==(const NormResults&) const = default;
};
enum class NormKind { Rms, AddRms, Layer };

// adds: dx includes `also`, and dw what it was.
template <class S>
NormResults run(const Shape& z, NormKind kind, bool adds, const NormOperands& o) {
    const auto rows = static_cast<size_t>(z.rows), n = static_cast<size_t>(z.n);
    const std::vector<S> x = stored<S>(o.x), residual = stored<S>(o.residual), w = stored<S>(o.w), b = stored<S>(o.b),
                         dy = stored<S>(o.dy), also = stored<S>(o.also);
    NormResults r;
    std::vector<S> s = x, y(rows * n), dx = dy;
    r.mean.resize(rows), r.rstd.resize(rows), r.dw.assign(n, 0.5f), r.db.resize(n);
    const int sums_of = kind == NormKind::Layer ? 2 : 1;
    const int64_t bytes = norm_backward_workspace_bytes(z.rows, z.n, sums_of, sizeof(S));
    std::vector<float> sums(static_cast<size_t>(bytes) / sizeof(float) + 1, NAN);
    const S* const other = adds ? also.data() : nullptr;
    if (kind == NormKind::Layer) {
        layer_norm(nullptr, z.rows, z.n, x.data(), w.data(), b.data(), 1e-5f, y.data(), r.mean.data(), r.rstd.data());
        layer_norm_backward(nullptr, z.rows, z.n, dy.data(), x.data(), w.data(), r.mean.data(), r.rstd.data(), other, dx.data(),
                            r.dw.data(), adds, r.db.data(), sums.data());
    } else {
        if (kind == NormKind::AddRms)
            add_rms_norm(nullptr, z.rows, z.n, s.data(), residual.data(), w.data(), 1e-5f, s.data(), y.data(), r.rstd.data());
        else rms_norm(nullptr, z.rows, z.n, x.data(), w.data(), 1e-5f, y.data(), r.rstd.data());
        rms_norm_backward(nullptr, z.rows, z.n, dx.data(), s.data(), w.data(), r.rstd.data(), other, dx.data(), r.dw.data(), adds,
                          sums.data());
    }
    EXPECT_TRUE(std::isnan(sums.back())) << "beyond the workspace, at n = " << z.n;
    r.s = widened(s), r.y = widened(y), r.dx = widened(dx);
    return r;
}

struct ExactNorm {
    std::vector<double> y, dx, dw, db;
};
ExactNorm exact(const Shape& z, NormKind kind, bool adds, const std::vector<float>& x, const NormOperands& o) {
    const auto rows = static_cast<size_t>(z.rows), n = static_cast<size_t>(z.n);
    const bool centered = kind == NormKind::Layer;
    ExactNorm e = {std::vector<double>(rows * n), std::vector<double>(rows * n), std::vector<double>(n, adds ? 0.5 : 0),
                   std::vector<double>(n)};
    for (size_t r = 0; r < rows; ++r) {
        double mean = 0, squares = 0, of_g = 0, of_gx = 0;
        for (size_t i = 0; i < n; ++i) mean += centered ? x[r * n + i] / static_cast<double>(n) : 0;
        for (size_t i = 0; i < n; ++i) squares += (x[r * n + i] - mean) * (x[r * n + i] - mean);
        const double rstd = 1 / std::sqrt(squares / static_cast<double>(n) + 1e-5);
        for (size_t i = 0; i < n; ++i) {
            const double normal = (x[r * n + i] - mean) * rstd, grad = o.dy[r * n + i];
            e.y[r * n + i] = normal * o.w[i] + (centered ? o.b[i] : 0);
            of_g += centered ? grad * o.w[i] / static_cast<double>(n) : 0;
            of_gx += grad * o.w[i] * normal / static_cast<double>(n);
            e.dw[i] += grad * normal, e.db[i] += grad;
        }
        for (size_t i = 0; i < n; ++i)
            e.dx[r * n + i] =
                rstd * (o.dy[r * n + i] * static_cast<double>(o.w[i]) - of_g - (x[r * n + i] - mean) * rstd * of_gx) +
                (adds ? o.also[r * n + i] : 0);
    }
    return e;
}

template <class S>
void hold_norms_to_double(const std::vector<Shape>& shapes, double of_y, double of_sums) {
    for (const Shape& z : shapes) {
        for (const NormKind kind : {NormKind::Rms, NormKind::AddRms, NormKind::Layer}) {
            for (const bool adds : {false, true}) {
                const bool is_long = z.rows > 100 || z.n > 2048;
                if (is_long && adds != (kind != NormKind::Rms)) continue;
                const std::string what = std::to_string(z.rows) + " x " + std::to_string(z.n) + ", kind " +
                                         std::to_string(static_cast<int>(kind)) + (adds ? ", added" : "");
                const auto rows = static_cast<size_t>(z.rows), n = static_cast<size_t>(z.n);
                NormOperands o = {draw(rows * n, 1), draw(rows * n, 5), draw(n, 2),
                                  draw(n, 3),        draw(rows * n, 4), draw(rows * n, 6)};
                for (std::vector<float>* v : {&o.x, &o.residual, &o.w, &o.b, &o.dy, &o.also}) *v = widened(stored<S>(*v));
                emulator::set_order(Order::Ascending);
                const NormResults got = run<S>(z, kind, adds, o);
                if (kind == NormKind::AddRms) {
                    std::vector<float> s = o.x;
                    for (size_t i = 0; i < s.size(); ++i) s[i] += o.residual[i];
                    EXPECT_TRUE(got.s == widened(stored<S>(s))) << what;
                }
                const ExactNorm want = exact(z, kind, adds, got.s, o);
                EXPECT_LE(error(got.y, want.y), of_y) << what;
                EXPECT_LE(error(got.dx, want.dx), of_y) << what;
                EXPECT_LE(error(got.dw, want.dw), of_sums) << what;
                if (kind == NormKind::Layer) {
                    EXPECT_LE(error(got.db, want.db), of_sums) << what;
                }
                for (const Order order : {Order::Descending, Order::Shuffled}) {
                    if (is_long && order == Order::Descending) continue;
                    emulator::set_order(order, 11);
                    EXPECT_TRUE(run<S>(z, kind, adds, o) == got) << what << ": another order of warps gives other bits";
                }
            }
        }
    }
    emulator::set_order(Order::Ascending);
}
TEST(GpuNorms, AgreeWithDoubleInFloat32) { hold_norms_to_double<float>(kNormShapes, 4e-6, 4e-6); }
TEST(GpuNorms, AgreeWithDoubleInBfloat16) { hold_norms_to_double<Bf16>(kNormShapes, 0x1p-8, 4e-6); }
TEST(GpuNorms, OfMoreRowsThanBlocksAgreeWithDouble) { hold_norms_to_double<Bf16>(kManyRows, 0x1p-8, 4e-6); }

template <class L>
void hold_losses_to_double(double of_z, double of_d) {
    for (const Shape& z : kShapes) {
        const auto rows = static_cast<size_t>(z.rows), n = static_cast<size_t>(z.n);
        const std::vector<L> logits = stored<L>(draw(rows * n, 5));
        const std::vector<float> d_z = draw(rows, 6), d_t = draw(rows, 7);
        std::vector<int32_t> targets(rows);
        for (size_t r = 0; r < rows; ++r) targets[r] = r % 3 == 2 ? -1 : static_cast<int32_t>(100 + r * 31 % (n + 2));
        constexpr int64_t kFirst = 100;
        std::vector<double> m(rows, -INFINITY), sums(rows), t(rows), d(rows * n);
        for (size_t r = 0; r < rows; ++r) {
            for (size_t i = 0; i < n; ++i) m[r] = std::max<double>(m[r], static_cast<float>(logits[r * n + i]));
            for (size_t i = 0; i < n; ++i) {
                const double e = std::exp(logits[r * n + i] - m[r]);
                const bool is_target = targets[r] >= 0 && static_cast<int64_t>(i) == targets[r] - kFirst;
                sums[r] += e, t[r] += is_target ? static_cast<float>(logits[r * n + i]) : 0;
                d[r * n + i] = e * d_z[r] + (is_target ? d_t[r] : 0);
            }
        }
        std::vector<float> first;
        for (const Order order : {Order::Ascending, Order::Descending, Order::Shuffled}) {
            emulator::set_order(order, 11);
            std::vector<float> most(rows), got_z(rows), got_t(rows);
            std::vector<L> got_d(rows * n);
            row_max(nullptr, z.rows, z.n, logits.data(), most.data());
            cross_entropy(nullptr, z.rows, z.n, logits.data(), most.data(), targets.data(), kFirst, got_z.data(), got_t.data());
            cross_entropy_backward(nullptr, z.rows, z.n, d_z.data(), d_t.data(), logits.data(), most.data(), targets.data(),
                                   kFirst, got_d.data());
            EXPECT_EQ(error(most, m), 0) << z.n;
            EXPECT_LE(error(got_z, sums), of_z) << z.n;
            EXPECT_EQ(error(got_t, t), 0) << z.n;
            EXPECT_LE(error(widened(got_d), d), of_d) << z.n;
            if (order == Order::Ascending) first = got_z;
            EXPECT_EQ(got_z, first) << z.n;
        }
    }
}
TEST(GpuLoss, EveryPathAgreesWithDouble) { hold_losses_to_double<float>(1e-6, 1e-6); }
TEST(GpuLoss, OfBfloat16AgreesWithDouble) { hold_losses_to_double<Bf16>(3e-6, 0x1p-8); }

// Rows of one and of four bytes a thread's access, that a block of 256 threads has and one of 1,024, that fit into shared memory
// and that do not; with padding.
template <class L>
void hold_gradients_to_double(const std::vector<Shape>& shapes, double of_z, double of_d) {
    for (const Shape& z : shapes) {
        const auto rows = static_cast<size_t>(z.rows), n = static_cast<size_t>(z.n);
        std::vector<L> logits = stored<L>(draw(rows * n, 5));
        for (size_t r = 0; r < rows; ++r) std::fill_n(&logits[(r + 1) * n - 3], 3, L(-INFINITY));
        const std::vector<float> d_nll = draw(rows, 6), d_t = draw(rows, 7);
        std::vector<int32_t> targets(rows);
        for (size_t r = 0; r < rows; ++r) targets[r] = r % 3 == 2 ? -1 : static_cast<int32_t>(r * 31 % (n - 3));
        std::vector<double> m(rows, -INFINITY), sums(rows), t(rows), d(rows * n);
        for (size_t r = 0; r < rows; ++r) {
            for (size_t i = 0; i < n; ++i) m[r] = std::max<double>(m[r], static_cast<float>(logits[r * n + i]));
            for (size_t i = 0; i < n; ++i) sums[r] += std::exp(logits[r * n + i] - m[r]);
            for (size_t i = 0; i < n; ++i) {
                const bool is_target = static_cast<int64_t>(i) == targets[r];
                t[r] += is_target ? static_cast<float>(logits[r * n + i]) : 0;
                d[r * n + i] = std::exp(logits[r * n + i] - m[r]) * d_nll[r] / sums[r] + (is_target ? d_t[r] : 0);
            }
        }
        std::vector<float> first_z, first_d;
        for (const Order order : {Order::Ascending, Order::Descending, Order::Shuffled}) {
            emulator::set_order(order, 11);
            std::vector<float> most(rows), got_z(rows), got_t(rows);
            std::vector<L> got_d = logits;
            cross_entropy_gradient(nullptr, z.rows, z.n, d_nll.data(), d_t.data(), got_d.data(), targets.data(), most.data(),
                                   got_z.data(), got_t.data(), got_d.data());
            EXPECT_EQ(error(most, m), 0) << z.n;
            EXPECT_LE(error(got_z, sums), of_z) << z.n;
            EXPECT_EQ(error(got_t, t), 0) << z.n;
            EXPECT_LE(error(widened(got_d), d), of_d) << z.n;
            if (order == Order::Ascending) first_z = got_z, first_d = widened(got_d);
            EXPECT_EQ(got_z, first_z) << z.n;
            EXPECT_EQ(widened(got_d), first_d) << z.n;
        }
    }
    std::vector<L> logits(1032, L(1.0f)), d(1032);
    std::vector<float> m(1), z(1), t(1);
    const std::vector<float> one = {1.0f};
    const std::vector<int32_t> target = {3};
    logits[20] = L(NAN);
    cross_entropy_gradient(nullptr, 1, 1032, one.data(), one.data(), logits.data(), target.data(), m.data(), z.data(), t.data(),
                           d.data());
    EXPECT_TRUE(std::isnan(z[0]));
}
TEST(GpuLoss, WithTheGradientInOneKernel) {
    hold_gradients_to_double<float>({{5, 8}, {9, 7}, {4, 1025}, {3, 8192}, {3, 8200}, {2, 41000}, {2, 43008}}, 1e-6, 1e-6);
}
TEST(GpuLoss, WithTheGradientInOneKernelOfBfloat16) {
    hold_gradients_to_double<Bf16>({{5, 8}, {9, 7}, {4, 1025}, {3, 8192}, {3, 8200}, {2, 50304}, {2, 60000}, {2, 90008}}, 3e-6,
                                   0x1p-8);
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

// More rows than all blocks have at once; one group of rows and several; one part of a row and several.
const std::vector<Shape> kColumnShapes = {{5, 8}, {9, 7}, {2200, 64}, {3, 125}, {70, 768}, {20, 1601}, {3, 300000}},
                         kLongColumnShapes = {{70, 1600}, {20, 2048}, {20, 4096}, {10, 8192}};

template <class T>
void hold_columns_to_double(const std::vector<Shape>& shapes) {
    for (const Shape& z : shapes) {
        const std::string what = std::to_string(z.rows) + " x " + std::to_string(z.n);
        const auto rows = static_cast<size_t>(z.rows), n = static_cast<size_t>(z.n);
        const std::vector<T> x = stored<T>(draw(rows * n, 10)), dy = stored<T>(draw(rows * n, 11)), b = stored<T>(draw(n, 12));
        std::vector<double> want(n, 0.5), want_db(n), want_dx(rows * n);
        for (size_t i = 0; i < x.size(); ++i) {
            want[i % n] += x[i];
            const double v = static_cast<double>(x[i]) + b[i % n], u = 1.5957691216 * (v + 0.044715 * v * v * v),
                         share = 1 / (1 + std::exp(-u)),
                         slope = share + v * share * (1 - share) * 1.5957691216 * (1 + 3 * 0.044715 * v * v);
            want_dx[i] = dy[i] * slope, want_db[i % n] += want_dx[i];
        }
        std::vector<std::vector<float>> got, db, dx;
        for (const Order order : {Order::Ascending, Order::Descending, Order::Shuffled}) {
            emulator::set_order(order, 11);
            std::vector<float> sums(static_cast<size_t>(sum_rows_workspace_bytes(z.rows, z.n)) / sizeof(float) + 1, NAN);
            got.emplace_back(n, 0.5f);
            sum_rows(nullptr, z.rows, z.n, x.data(), got.back().data(), true, sums.data());
            std::vector<T> d = dy;
            db.emplace_back(n, NAN);
            bias_gelu_backward(nullptr, z.rows, z.n, d.data(), x.data(), b.data(), d.data(), db.back().data(), false,
                               sums.data());
            dx.push_back(widened(d));
            EXPECT_TRUE(std::isnan(sums.back())) << "beyond the workspace: " << what;
        }
        EXPECT_LE(error(got[0], want), 2e-6) << what;
        EXPECT_LE(error(db[0], want_db), 4e-6) << what;
        EXPECT_LE(error(dx[0], want_dx), sizeof(T) == 2 ? 0x1p-8 : 2e-6) << what;
        EXPECT_TRUE(got[0] == got[1] && got[0] == got[2] && db[0] == db[1] && db[0] == db[2] && dx[0] == dx[1] && dx[0] == dx[2])
            << what;
    }
    emulator::set_order(Order::Ascending);
}
TEST(GpuColumns, AgreeWithDoubleInFloat32) { hold_columns_to_double<float>(kColumnShapes); }
TEST(GpuColumns, AgreeWithDoubleInBfloat16) {
    hold_columns_to_double<Bf16>(kColumnShapes);
    hold_columns_to_double<Bf16>(kLongColumnShapes);
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

// More elements than all threads have at once; an odd number of them.
TEST(GpuAdam, OfMoreElementsThanThreadsAgreesWithDouble) {
    constexpr int64_t kElements = 4 * kProcessors * 256 * 8 + 3001;
    const size_t n = static_cast<size_t>(kElements);
    const std::vector<float> g = draw(n, 20);
    kernels::AdamStep step;
    step.beta1 = 0.9, step.beta2 = 0.95, step.eps = 1e-8, step.weight_decay = 0.1, step.l2 = 0;
    const std::vector<double> control = {1e-3, 0.5, 1, 1 - 0.9, 1 - 0.95};
    std::vector<float> w = draw(n, 21), m = draw(n, 22), v = draw(n, 23);
    for (float& x : v) x *= x;
    std::vector<double> want(n);
    for (size_t i = 0; i < n; ++i) {
        const double grad = g[i] * 0.5, first = 0.9 * m[i] + 0.1 * grad, second = 0.95 * v[i] + 0.05 * grad * grad;
        want[i] = w[i] * (1 - 1e-3 * 0.1) - 1e-3 * first / 0.1 / (std::sqrt(second / 0.05) + 1e-8);
    }
    std::vector<Bf16> narrow(n);
    adamw(nullptr, kElements, step, control.data(), g.data(), w.data(), m.data(), v.data(), narrow.data());
    EXPECT_LE(error(w, want), 1e-6);
    for (size_t i = 0; i < n; ++i) ASSERT_EQ(narrow[i].bits, Bf16(w[i]).bits) << i;
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
