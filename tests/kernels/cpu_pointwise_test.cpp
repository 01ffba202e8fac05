// Norm, elementwise kernels, rotary positions, embedding, loss and optimizer against plain loops in double, with every
// number of threads from 1 to 3 and both for the chosen and the baseline instruction set.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <thread>

#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/loss.h"
#include "kernels/cpu/norm.h"
#include "kernels/cpu/optimizer.h"
#include "kernels/step_control.h"
#include "tests/kernels/cpu_data.h"

namespace lockstep::kernels::cpu {

namespace baseline {
extern const TypedNorm<RmsNorm> rms_norm;
extern const TypedNormBackward<RmsNormBackward> rms_norm_backward;
Exponential exponential;
extern const Typed<SwiGlu> swiglu;
extern const Typed<SwiGluBackward> swiglu_backward;
extern const Typed<SwiGluPacked> swiglu_packed;
extern const Typed<SwiGluPackedBackward> swiglu_packed_backward;
extern const Typed<Rope> rope;
extern const Typed<CrossEntropy> cross_entropy;
extern const TypedOnStream<CrossEntropyBackward> cross_entropy_backward;
extern const TypedOnStream<CrossEntropyGradient> cross_entropy_gradient;
extern const TypedOnStream<AdamW> adamw;
SumOfSquares sum_of_squares;
}  // namespace baseline

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

template <typename Want>
void expect_near(const Want& want, const std::vector<float>& got, double tolerance) {
    ASSERT_EQ(want.size(), got.size());
    double worst = 0;
    for (size_t i = 0; i < got.size(); ++i) {
        const double error = std::abs(want[i] - got[i]) / (1 + std::abs(want[i]));
        worst = error <= worst ? worst : error;  // keeps NaN
    }
    EXPECT_LT(worst, tolerance);
}

// Calls test(pool) for pools of 1, 2 and 3 threads.
template <typename Test>
void with_pools(const Test& test) {
    for (int threads : {1, 2, 3}) {
        SCOPED_TRACE(::testing::Message() << threads << " threads");
        ThreadPool pool(threads);
        test(pool);
    }
}

TEST(CpuNorm, ForwardAndBackward) {
    std::mt19937 rng(1);
    with_pools([&](ThreadPool& pool) {
        for (const auto& [rows, n] : std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {5, 64}, {7, 77}, {33, 512}, {2, 19}}) {
            const std::vector<float> x = random_floats(rng, rows * n), w = random_floats(rng, n),
                                     dy = random_floats(rng, rows * n);
            const float eps = 1e-5f;
            std::vector<double> want_y(rows * n), want_rstd(rows), want_dx(rows * n), want_dw(n, 2.0);
            for (int64_t r = 0; r < rows; ++r) {
                double squares = 0, dot = 0;
                for (int64_t i = 0; i < n; ++i) squares += double{x[r * n + i]} * x[r * n + i];
                const double rstd = want_rstd[r] = 1 / std::sqrt(squares / n + eps);
                for (int64_t i = 0; i < n; ++i) dot += double{dy[r * n + i]} * w[i] * x[r * n + i] * rstd / n;
                for (int64_t i = 0; i < n; ++i) {
                    const double normal = x[r * n + i] * rstd;
                    want_y[r * n + i] = normal * w[i];
                    want_dx[r * n + i] = rstd * (double{dy[r * n + i]} * w[i] - normal * dot);
                    want_dw[i] += dy[r * n + i] * normal;
                }
            }
            for (const auto& [forward, backward] :
                 {std::pair{rms_norm, rms_norm_backward}, std::pair{baseline::rms_norm, baseline::rms_norm_backward}}) {
                std::vector<float> y = x, rstd(rows), dx = dy, dw(n, 2.0f);
                forward(pool, rows, n, y.data(), w.data(), eps, y.data(), rstd.data());
                std::vector<float> workspace(rms_norm_backward_workspace_bytes(n, pool.threads()) / 4);
                backward(pool, rows, n, dx.data(), x.data(), w.data(), rstd.data(), nullptr, dx.data(), dw.data(), true,
                         workspace.data());
                expect_near(want_y, y, 2e-6);
                expect_near(want_rstd, rstd, 2e-6);
                expect_near(want_dx, dx, 5e-6);
                expect_near(want_dw, dw, 5e-6);
                backward(pool, rows, n, dy.data(), x.data(), w.data(), rstd.data(), nullptr, dx.data(), dw.data(), false,
                         workspace.data());
                for (double& v : want_dw) v -= 2.0;
                expect_near(want_dw, dw, 5e-6);
                for (double& v : want_dw) v += 2.0;
            }
        }
    });
}

TEST(CpuElementwise, AddAndScale) {
    std::mt19937 rng(2);
    with_pools([&](ThreadPool& pool) {
        for (int64_t n : {1, 7, 16, 100, 1001})
            for (int count : {1, 2, 3, 5}) {
                std::vector<std::vector<float>> inputs;
                std::vector<const float*> pointers;
                std::vector<float> want(n, 0.0f);
                for (int k = 0; k < count; ++k) inputs.push_back(random_floats(rng, n));
                for (int64_t i = 0; i < n; ++i) {
                    want[i] = inputs[0][i];
                    for (int k = 1; k < count; ++k) want[i] += inputs[k][i];
                }
                for (const std::vector<float>& input : inputs) pointers.push_back(input.data());
                std::vector<float> out(n);
                add(pool, n, pointers.data(), count, out.data());
                EXPECT_EQ(out, want);
                add(pool, n, pointers.data(), count, inputs.back().data());
                EXPECT_EQ(inputs.back(), want);
                scale(pool, n, out.data(), -2.0f, out.data());
                for (int64_t i = 0; i < n; ++i) EXPECT_EQ(out[i], -2.0f * want[i]);
            }
    });
}

TEST(CpuElementwise, ExponentialWithinTwoUlp) {
    ThreadPool pool(1);
    std::vector<float> x, y;
    for (float v = -87.3f; v < 88.72f; v += 0.00137f) x.push_back(v);
    y.resize(x.size());
    for (Exponential* kernel : {exponential, &baseline::exponential}) {
        kernel(pool, x.size(), x.data(), y.data());
        double worst = 0;
        for (size_t i = 0; i < x.size(); ++i) {
            const double want = std::exp(double{x[i]});
            const float nearest = static_cast<float>(want);
            worst = std::max(worst, std::abs(want - y[i]) / (std::nextafter(nearest, kInfinity) - nearest));
        }
        EXPECT_LT(worst, 2.0);
        std::vector<float> special{-kInfinity, -1000.0f, -88.0f, 0.0f, -0.0f, 89.0f, kInfinity, NAN}, got(8);
        kernel(pool, 8, special.data(), got.data());
        EXPECT_EQ(std::vector<float>(got.begin(), got.begin() + 7), (std::vector<float>{0, 0, 0, 1, 1, kInfinity, kInfinity}));
        EXPECT_TRUE(std::isnan(got[7]));
    }
}

TEST(CpuElementwise, SwiGlu) {
    std::mt19937 rng(3);
    with_pools([&](ThreadPool& pool) {
        for (int64_t n : {1, 15, 64, 1003}) {
            const std::vector<float> gate = random_floats(rng, n, 4), up = random_floats(rng, n), dy = random_floats(rng, n);
            std::vector<double> y(n), d_gate(n), d_up(n);
            for (int64_t i = 0; i < n; ++i) {
                const double s = 1 / (1 + std::exp(-double{gate[i]}));
                y[i] = gate[i] * s * up[i];
                d_gate[i] = dy[i] * up[i] * s * (1 + gate[i] * (1 - s));
                d_up[i] = dy[i] * gate[i] * s;
            }
            for (const auto& [forward, backward] :
                 {std::pair{swiglu, swiglu_backward}, std::pair{baseline::swiglu, baseline::swiglu_backward}}) {
                std::vector<float> a = gate, b = up;
                forward(pool, n, a.data(), b.data(), a.data());
                expect_near(y, a, 2e-6);
                a = gate;
                std::vector<float> again(n), once(n);
                forward(pool, n, a.data(), b.data(), once.data());
                backward(pool, n, dy.data(), a.data(), b.data(), a.data(), b.data(), again.data());
                expect_near(d_gate, a, 3e-6);
                expect_near(d_up, b, 2e-6);
                EXPECT_EQ(again, once);
            }
        }
        std::vector<float> extreme{-200.0f, 200.0f}, one{1.0f, 1.0f}, y(2);
        swiglu(pool, 2, extreme.data(), one.data(), y.data());
        EXPECT_EQ(y[0], 0.0f);
        EXPECT_EQ(y[1], 200.0f);
    });
}

// Gate and up of a row one behind the other: the bits of the two apart.
TEST(CpuElementwise, SwiGluOfPackedRows) {
    std::mt19937 rng(3);
    with_pools([&](ThreadPool& pool) {
        for (const auto& [rows, n] : {std::pair<int64_t, int64_t>{1, 1}, {3, 15}, {5, 64}, {2, 1003}, {1, 4000}}) {
            const std::vector<float> gate = random_floats(rng, rows * n, 4), up = random_floats(rng, rows * n),
                                     dy = random_floats(rng, rows * n);
            const auto packed = [rows = rows, n = n](const std::vector<float>& a, const std::vector<float>& b) {
                std::vector<float> out;
                for (int64_t r = 0; r < rows; ++r) {
                    out.insert(out.end(), a.begin() + r * n, a.begin() + (r + 1) * n);
                    out.insert(out.end(), b.begin() + r * n, b.begin() + (r + 1) * n);
                }
                return out;
            };
            std::vector<float> y(gate.size()), d_gate(gate.size()), d_up(gate.size()), got(gate.size()), both = packed(gate, up);
            swiglu(pool, rows * n, gate.data(), up.data(), y.data());
            swiglu_packed(pool, rows, n, both.data(), got.data());
            EXPECT_EQ(got, y);
            swiglu_backward(pool, rows * n, dy.data(), gate.data(), up.data(), d_gate.data(), d_up.data(), nullptr);
            std::vector<float> again(gate.size()), d_both(both.size());
            swiglu_packed_backward(pool, rows, n, dy.data(), both.data(), d_both.data(), again.data());
            EXPECT_EQ(again, y);
            swiglu_packed_backward(pool, rows, n, dy.data(), both.data(), both.data(), nullptr);
            EXPECT_EQ(both, packed(d_gate, d_up));
            EXPECT_EQ(both, d_both);
        }
    });
}

TEST(CpuElementwise, Rope) {
    std::mt19937 rng(4);
    for (int64_t head_dim : {2, 6, 64, 128, 600}) {
        const int64_t tokens = 9, heads = 3, half = head_dim / 2;
        const std::vector<int32_t> pos{0, 1, 2, 17, 4096, 131071, 999999, 1000000, 12345};
        std::vector<double> frequencies(half);
        for (int64_t i = 0; i < half; ++i) frequencies[i] = std::pow(10000.0, -static_cast<double>(i) / half);
        const std::vector<float> x = random_floats(rng, tokens * heads * head_dim);
        std::vector<double> want(x.size());
        for (int64_t r = 0; r < tokens * heads; ++r)
            for (int64_t i = 0; i < half; ++i) {
                const double angle = pos[r / heads] * frequencies[i], a = x[r * head_dim + i], b = x[r * head_dim + half + i];
                want[r * head_dim + i] = a * std::cos(angle) - b * std::sin(angle);
                want[r * head_dim + half + i] = b * std::cos(angle) + a * std::sin(angle);
            }
        for (Rope<float>* kernel : {rope, baseline::rope}) {
            std::vector<float> y = x;
            const Range all{0, tokens};
            kernel(all, heads, head_dim, y.data(), pos.data(), frequencies.data(), 1.0f, y.data());
            expect_near(want, y, 5e-7);
            kernel(all, heads, head_dim, y.data(), pos.data(), frequencies.data(), -1.0f, y.data());
            expect_near(x, y, 5e-7);
        }
    }
}

// The bits of rope on each, and of a copy; putting them together again gives what there was.
TEST(CpuElementwise, QueriesKeysAndValuesApartAndTogether) {
    std::mt19937 rng(6);
    const std::vector<int32_t> pos{0, 3, 17, 4096, 5};
    for (int64_t head_dim : {2, 6, 64, 600}) {
        const QkvShape s{5, 4, 2, head_dim};
        std::vector<double> frequencies(head_dim / 2);
        for (size_t i = 0; i < frequencies.size(); ++i) frequencies[i] = std::pow(100.0, -static_cast<double>(i));
        const std::vector<float> all = random_floats(rng, s.tokens * s.heads() * head_dim);
        std::vector<float> q(5 * 4 * head_dim), k(5 * 2 * head_dim), v(k), want_q(q), want_k(k), want_v(k), again(all.size());
        for (int64_t t = 0; t < s.tokens; ++t) {
            const float* row = all.data() + t * s.heads() * head_dim;
            std::copy_n(row, 4 * head_dim, want_q.data() + t * 4 * head_dim);
            std::copy_n(row + 4 * head_dim, 2 * head_dim, want_k.data() + t * 2 * head_dim);
            std::copy_n(row + 6 * head_dim, 2 * head_dim, want_v.data() + t * 2 * head_dim);
        }
        const Range tokens{0, s.tokens};
        split_qkv(tokens, s, all.data(), nullptr, nullptr, 1.0f, q.data(), k.data(), v.data());
        EXPECT_TRUE(q == want_q && k == want_k && v == want_v);
        join_qkv(tokens, s, q.data(), k.data(), v.data(), nullptr, nullptr, 1.0f, again.data());
        EXPECT_EQ(again, all);
        rope(tokens, 4, head_dim, want_q.data(), pos.data(), frequencies.data(), 1.0f, want_q.data());
        rope(tokens, 2, head_dim, want_k.data(), pos.data(), frequencies.data(), 1.0f, want_k.data());
        split_qkv(tokens, s, all.data(), pos.data(), frequencies.data(), 1.0f, q.data(), k.data(), v.data());
        EXPECT_TRUE(q == want_q && k == want_k && v == want_v);
        join_qkv(tokens, s, q.data(), k.data(), v.data(), pos.data(), frequencies.data(), -1.0f, again.data());
        const std::vector<double> before(all.begin(), all.end());
        expect_near(before, again, 5e-7);
    }
}

TEST(CpuElementwise, EmbeddingOnAShard) {
    std::mt19937 rng(5);
    with_pools([&](ThreadPool& pool) {
        const int64_t hidden = 37, rows = 10, first = 5;
        const std::vector<int32_t> ids{5, 14, 4, 15, 7, 7, 0, 7, 1000};
        const int64_t tokens = static_cast<int64_t>(ids.size());
        const std::vector<float> table = random_floats(rng, rows * hidden), d_out = random_floats(rng, tokens * hidden);
        std::vector<float> out(tokens * hidden, NAN), want(out.size(), 0.0f), d_table(rows * hidden, 1.0f), want_d(d_table);
        for (int64_t t = 0; t < tokens; ++t)
            for (int64_t i = 0; i < hidden && ids[t] >= first && ids[t] < first + rows; ++i) {
                want[t * hidden + i] = table[(ids[t] - first) * hidden + i];
                want_d[(ids[t] - first) * hidden + i] += d_out[t * hidden + i];
            }
        embedding(pool, tokens, hidden, ids.data(), first, rows, table.data(), out.data());
        EXPECT_EQ(out, want);
        embedding_backward(pool, tokens, hidden, ids.data(), first, rows, d_out.data(), d_table.data(), true);
        EXPECT_EQ(d_table, want_d);
        embedding_backward(pool, tokens, hidden, ids.data(), first, rows, d_out.data(), d_table.data(), false);
        for (float& v : want_d) v -= 1.0f;
        expect_near(want_d, d_table, 1e-6);
        EXPECT_EQ(d_table[3 * hidden], 0.0f);
    });
}

TEST(CpuLoss, ForwardAndBackwardOnAShard) {
    std::mt19937 rng(6);
    with_pools([&](ThreadPool& pool) {
        for (int64_t n : {1, 13, 96, 1000}) {
            const int64_t rows = 6, first = 100, valid = (n + 1) / 2 + n / 4;
            std::vector<float> logits = random_floats(rng, rows * n, 3);
            for (int64_t r = 0; r < rows; ++r) std::fill(&logits[r * n] + valid, &logits[r * n] + n, -kInfinity);
            const std::vector<int32_t> targets{100, -1, 99, static_cast<int32_t>(100 + n), static_cast<int32_t>(99 + valid), 100};
            const std::vector<float> d_z = random_floats(rng, rows), d_t = random_floats(rng, rows);
            std::vector<float> m(rows), want_m(rows, -kInfinity);
            std::vector<double> want_z(rows, 0), want_t(rows, 0), want_d(rows * n, 0);
            for (int64_t r = 0; r < rows; ++r) {
                for (int64_t c = 0; c < valid; ++c) want_m[r] = std::max(want_m[r], logits[r * n + c]);
                for (int64_t c = 0; c < n; ++c) {
                    EXPECT_EQ(c >= valid, std::isinf(logits[r * n + c]));
                    const double e = std::exp(double{logits[r * n + c]} - want_m[r]);
                    want_z[r] += e;
                    want_d[r * n + c] = e * d_z[r];
                    if (targets[r] >= 0 && targets[r] - first == c) want_t[r] = logits[r * n + c], want_d[r * n + c] += d_t[r];
                }
            }
            row_max(pool, rows, n, logits.data(), m.data());
            EXPECT_EQ(m, want_m);
            for (const auto& [forward, backward] : {std::pair{cross_entropy, cross_entropy_backward},
                                                    std::pair{baseline::cross_entropy, baseline::cross_entropy_backward}}) {
                std::vector<float> z(rows), t(rows), d = logits;
                forward(pool, rows, n, logits.data(), m.data(), targets.data(), first, z.data(), t.data());
                expect_near(want_z, z, 1e-5);
                expect_near(want_t, t, 1e-7);
                backward(pool, rows, n, d_z.data(), d_t.data(), d.data(), m.data(), targets.data(), first, d.data());
                expect_near(want_d, d, 1e-6);
            }
        }
    });
}

// The bits of the pieces, one row after the other in their place.
TEST(CpuLoss, InOneKernelHasTheBitsOfThePieces) {
    std::mt19937 rng(8);
    with_pools([&](ThreadPool& pool) {
        for (const int64_t n : {1, 13, 96, 1000}) {
            const int64_t rows = 5;
            const std::vector<float> logits = random_floats(rng, rows * n, 3), d_nll = random_floats(rng, rows),
                                     d_t = random_floats(rng, rows);
            const std::vector<int32_t> targets{0, -1, static_cast<int32_t>(n - 1), static_cast<int32_t>(n), 0};
            std::vector<float> m(rows), z(rows), t(rows), d_z(rows), d = logits;
            row_max(pool, rows, n, logits.data(), m.data());
            cross_entropy(pool, rows, n, logits.data(), m.data(), targets.data(), 0, z.data(), t.data());
            for (int64_t r = 0; r < rows; ++r) d_z[r] = d_nll[r] * (1.0f / z[r]);
            cross_entropy_backward(pool, rows, n, d_z.data(), d_t.data(), d.data(), m.data(), targets.data(), 0, d.data());
            std::vector<float> got_m(rows), got_z(rows), got_t(rows), got = logits;
            cross_entropy_gradient(pool, rows, n, d_nll.data(), d_t.data(), got.data(), targets.data(), got_m.data(),
                                   got_z.data(), got_t.data(), got.data());
            EXPECT_EQ(got_m, m);
            EXPECT_EQ(got_z, z);
            EXPECT_EQ(got_t, t);
            EXPECT_EQ(got, d);
        }
    });
}

TEST(CpuLoss, NaNIsSeen) {
    ThreadPool pool(1);
    std::vector<float> logits(50, 1.0f), m{1.0f}, z(1), t(1);
    const std::vector<int32_t> targets{3};
    logits[20] = NAN;
    cross_entropy(pool, 1, 50, logits.data(), m.data(), targets.data(), 0, z.data(), t.data());
    EXPECT_TRUE(std::isnan(z[0]));
}

TEST(CpuOptimizer, AdamWInPyTorchsOrder) {
    std::mt19937 rng(7);
    with_pools([&](ThreadPool& pool) {
        for (AdamW<float, Bf16>* kernel : {adamw, baseline::adamw}) {
            const int64_t n = 1037;
            std::vector<Bf16> narrow(n);
            std::vector<float> w = random_floats(rng, n), m(n, 0.0f), v(n, 0.0f);
            std::vector<double> ww(w.begin(), w.end()), mm(n, 0), vv(n, 0);
            for (int t = 1; t <= 3; ++t) {
                const std::vector<float> g = random_floats(rng, n);
                const AdamStep step{0.9, 0.95, 1e-8, 0.1};
                StepControl now{1e-3, 0.5, true, 1 - std::pow(0.9, t), 1 - std::pow(0.95, t), 0, 0};
                std::array<double, StepControl::kValues> control;
                now.write(control.data());
                kernel(pool, n, step, control.data(), g.data(), w.data(), m.data(), v.data(), t == 3 ? nullptr : narrow.data());
                for (int64_t i = 0; t != 3 && i < n; ++i) ASSERT_EQ(narrow[i].bits, Bf16(w[i]).bits);
                for (int64_t i = 0; i < n; ++i) {
                    const double grad = 0.5 * g[i];
                    ww[i] *= 1 - now.lr * step.weight_decay;
                    mm[i] += (1 - step.beta1) * (grad - mm[i]);
                    vv[i] = step.beta2 * vv[i] + (1 - step.beta2) * grad * grad;
                    ww[i] -= now.lr / now.bias_correction1 * mm[i] / (std::sqrt(vv[i] / now.bias_correction2) + step.eps);
                }
                expect_near(ww, w, 1e-6);
                expect_near(mm, m, 1e-6);
                expect_near(vv, v, 1e-6);
                const std::vector<float> before = w;
                now.commit = false;
                now.write(control.data());
                kernel(pool, n, step, control.data(), g.data(), w.data(), m.data(), v.data(), nullptr);
                EXPECT_EQ(std::memcmp(before.data(), w.data(), n * 4), 0);
            }
        }
    });
}

TEST(CpuOptimizer, SumOfSquares) {
    std::mt19937 rng(8);
    std::map<int64_t, double> first;
    with_pools([&](ThreadPool& pool) {
        for (SumOfSquares* kernel : {sum_of_squares, &baseline::sum_of_squares})
            for (int64_t n : {0, 1, 17, 16384, 100003}) {
                std::vector<float> x(n);
                double want = 0;
                for (int64_t i = 0; i < n; ++i) x[i] = std::sin(static_cast<float>(i)), want += double{x[i]} * x[i];
                std::vector<char> workspace(sum_of_squares_workspace_bytes(n) + 64);
                const SquareSum got = kernel(pool, n, x.data(), workspace.data());
                EXPECT_NEAR(got.sum, want, 1e-12 * (1 + want));
                EXPECT_EQ(got.non_finite, 0);
                if (kernel == sum_of_squares && !first.emplace(n, got.sum).second) {
                    EXPECT_EQ(first[n], got.sum);  // the same bits for any number of threads
                }
                if (n < 17) continue;
                x[3] = NAN, x[16] = -kInfinity;
                const SquareSum bad = kernel(pool, n, x.data(), workspace.data());
                EXPECT_EQ(bad.non_finite, 2);
                EXPECT_TRUE(std::isnan(bad.sum));
            }
    });
}

TEST(CpuPointwise, RanksInParallel) {
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < 4; ++rank)
        ranks.emplace_back([rank] {
            std::mt19937 rng(rank);
            ThreadPool pool(1 + rank % 3);
            const std::vector<float> a = random_floats(rng, 5000), b = random_floats(rng, 5000);
            const float* inputs[] = {a.data(), b.data()};
            std::vector<float> out(5000);
            for (int round = 0; round < 50; ++round) {
                add(pool, 5000, inputs, 2, out.data());
                for (int64_t i = 0; i < 5000; ++i) ASSERT_EQ(out[i], a[i] + b[i]);
            }
        });
    for (std::thread& rank : ranks) rank.join();
}

}  // namespace
}  // namespace lockstep::kernels::cpu
