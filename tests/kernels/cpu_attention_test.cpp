// Attention forward and backward against plain loops in double.
#include "kernels/cpu/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <thread>

#include "base/random.h"
#include "kernels/cpu/matmul.h"
#include "kernels/kernel.h"
#include "tests/kernels/cpu_data.h"

namespace lockstep::kernels::cpu {

namespace baseline {
extern const Typed<Attention> attention;
extern const Typed<AttentionBackward> attention_backward;
extern const Typed<Attention> attention_row;
extern const Typed<AttentionBlock> attention_block;
extern const Typed<AttentionBlockBackward> attention_block_backward;
}  // namespace baseline

namespace {

enum class Mask { causal, full, documents, permuted, blind_rows };

struct Case {
    AttentionShape shape;
    Mask mask;
    double dropout = 0;
};

struct Inputs {
    std::vector<float> q, k, v, d_out;
    std::vector<int32_t> pos, kv_pos, doc, kv_doc, noise;
    AttentionDropout drop;  // but for its noise
    AttentionMask mask() const {
        AttentionMask m{pos.data(), kv_pos.data(), doc.data(), kv_doc.data(), drop};
        if (!noise.empty()) m.drop.noise = noise.data();
        return m;
    }
    // What the probability of a query row, a head of it and a key is multiplied with.
    double kept(int64_t token, int64_t head, int64_t member, int64_t key) const {
        if (noise.empty()) return 1;
        const int64_t id = (drop.first_head + head) * drop.members + drop.first_member + member;
        const uint64_t row = dropout_row(drop.stream, static_cast<uint32_t>(noise[token]), static_cast<uint64_t>(id));
        return dropout_bits(row, static_cast<uint32_t>(kv_pos[key])) >= drop.threshold ? drop.scale : 0;
    }
};

Inputs make_inputs(const Case& c, std::mt19937& rng) {
    const AttentionShape& s = c.shape;
    Inputs x;
    x.q = random_floats(rng, s.batch * s.seq * s.kv_heads * s.group * s.head_dim);
    x.d_out = random_floats(rng, x.q.size());
    x.k = random_floats(rng, s.batch * s.kv_seq * s.kv_heads * s.head_dim);
    x.v = random_floats(rng, x.k.size());
    for (int64_t b = 0; b < s.batch; ++b) {
        for (int64_t i = 0; i < s.seq; ++i) {
            x.pos.push_back(static_cast<int32_t>(c.mask == Mask::full ? 1000000 : i + s.kv_seq - s.seq));
            x.doc.push_back(c.mask == Mask::documents ? static_cast<int32_t>(i / 37) : c.mask == Mask::blind_rows ? i % 3 : 0);
        }
        for (int64_t i = 0; i < s.kv_seq; ++i) {
            x.kv_pos.push_back(static_cast<int32_t>(i));
            x.kv_doc.push_back(c.mask == Mask::documents ? static_cast<int32_t>(i / 37) : 0);
        }
    }
    if (c.dropout > 0) {
        for (int64_t i = 0; i < s.batch * s.seq; ++i) x.noise.push_back(static_cast<int32_t>(rng()));
        x.drop = {nullptr, 99, dropout_threshold(c.dropout), static_cast<float>(1 / (1 - c.dropout)), 2, 1, 5};
    }
    if (c.mask == Mask::permuted) {
        std::shuffle(x.pos.begin(), x.pos.end(), rng);
        std::shuffle(x.kv_pos.begin(), x.kv_pos.end(), rng);
    }
    return x;
}

struct Results {
    std::vector<double> out, lse, d_q, d_k, d_v;
};

Results reference(const AttentionShape& s, const Inputs& x) {
    Results r;
    const int64_t d = s.head_dim;
    r.out.assign(x.q.size(), 0), r.d_q.assign(x.q.size(), 0), r.d_k.assign(x.k.size(), 0), r.d_v.assign(x.k.size(), 0);
    r.lse.assign(x.q.size() / d, 0);
    std::vector<double> p(s.kv_seq);
    for (int64_t row = 0; row < static_cast<int64_t>(r.lse.size()); ++row) {
        const int64_t head = row / s.group % s.kv_heads, token = row / s.group / s.kv_heads, b = token / s.seq;
        const float* q = &x.q[row * d];
        const float* d_out = &x.d_out[row * d];
        double largest = -std::numeric_limits<double>::infinity(), sum = 0, delta = 0;
        const auto key = [&](int64_t t) { return ((b * s.kv_seq + t) * s.kv_heads + head) * d; };
        for (int64_t t = 0; t < s.kv_seq; ++t) {
            const int64_t at = b * s.kv_seq + t;
            p[t] = -std::numeric_limits<double>::infinity();
            const bool too_far = s.window > 0 && x.pos[token] - x.kv_pos[at] >= s.window;
            if (x.kv_pos[at] > x.pos[token] || too_far || x.kv_doc[at] != x.doc[token]) continue;
            p[t] = 0;
            for (int64_t c = 0; c < d; ++c) p[t] += double{q[c]} * x.k[key(t) + c];
            p[t] *= s.scale;
            largest = std::max(largest, p[t]);
        }
        r.lse[row] = -std::numeric_limits<double>::infinity();
        if (std::isinf(largest)) continue;
        for (int64_t t = 0; t < s.kv_seq; ++t) sum += std::exp(p[t] - largest);
        r.lse[row] = largest + std::log(sum);
        for (int64_t t = 0; t < s.kv_seq; ++t) {
            p[t] = std::exp(p[t] - r.lse[row]);
            const double kept = x.kept(token, head, row % s.group, b * s.kv_seq + t);
            for (int64_t c = 0; c < d; ++c) r.out[row * d + c] += p[t] * kept * x.v[key(t) + c];
        }
        for (int64_t c = 0; c < d; ++c) delta += r.out[row * d + c] * d_out[c];
        for (int64_t t = 0; t < s.kv_seq; ++t) {
            if (p[t] == 0) continue;
            double dp = 0;
            for (int64_t c = 0; c < d; ++c) dp += double{d_out[c]} * x.v[key(t) + c];
            const double kept = x.kept(token, head, row % s.group, b * s.kv_seq + t);
            const double ds = p[t] * (kept * dp - delta) * s.scale;
            for (int64_t c = 0; c < d; ++c) {
                r.d_v[key(t) + c] += p[t] * kept * d_out[c];
                r.d_k[key(t) + c] += ds * q[c];
                r.d_q[row * d + c] += ds * x.k[key(t) + c];
            }
        }
    }
    return r;
}

void expect_near(const std::vector<double>& want, const std::vector<float>& got, double tolerance, const char* what) {
    ASSERT_EQ(want.size(), got.size());
    double worst = 0;
    for (size_t i = 0; i < want.size(); ++i) {
        if (std::isinf(want[i])) {
            EXPECT_EQ(want[i], double{got[i]}) << what;
            continue;
        }
        const double error = std::abs(want[i] - got[i]) / (1 + std::abs(want[i]));
        if (!(error <= worst) && !std::isnan(worst)) worst = error;  // keeps NaN
    }
    EXPECT_LT(worst, tolerance) << what;
}

std::vector<uint16_t> bits(const std::vector<Bf16>& v) {
    std::vector<uint16_t> out;
    for (Bf16 b : v) out.push_back(b.bits);
    return out;
}
std::vector<uint16_t> rounded(const std::vector<float>& v) { return bits({v.begin(), v.end()}); }

struct Outputs {
    std::vector<float> out, lse, d_q, d_k, d_v;
    bool operator==(const Outputs&) const = default;
};

template <class T>
Outputs run(ThreadPool& pool, const AttentionShape& s, const Inputs& x, Attention<T>* forward, AttentionBackward<T>* backward,
            AttentionKernel kernel = AttentionKernel::floats) {
    const auto stored = [](const std::vector<float>& v) { return std::vector<T>(v.begin(), v.end()); };
    const auto floats = [](const std::vector<T>& v) { return std::vector<float>(v.begin(), v.end()); };
    const std::vector<T> q = stored(x.q), k = stored(x.k), v = stored(x.v), d_out = stored(x.d_out);
    std::vector<T> out(q.size(), T(NAN)), d_q(out), d_k(k.size(), T(NAN)), d_v(d_k);
    std::vector<float> lse(q.size() / s.head_dim, NAN);
    const AlignedBytes w1(attention_workspace_bytes(s, pool.threads(), kernel));
    forward(pool, s, x.mask(), q.data(), k.data(), v.data(), out.data(), lse.data(), w1.data.get());
    const AlignedBytes w2(attention_backward_workspace_bytes(s, pool.threads(), kernel));
    backward(pool, s, x.mask(), q.data(), k.data(), v.data(), lse.data(), d_out.data(), d_q.data(), d_k.data(), d_v.data(),
             w2.data.get());
    return {floats(out), lse, floats(d_q), floats(d_k), floats(d_v)};
}
Outputs run(ThreadPool& pool, const AttentionShape& s, const Inputs& x) {
    return run<float>(pool, s, x, attention, attention_backward);
}
Outputs run_amx(ThreadPool& pool, const AttentionShape& s, const Inputs& x) {
    return run<Bf16>(pool, s, x, attention_amx, attention_backward_amx, AttentionKernel::amx);
}

void expect_matches(const Results& want, const Outputs& got) {
    expect_near(want.out, got.out, 2e-6, "out");
    expect_near(want.lse, got.lse, 2e-6, "lse");
    expect_near(want.d_q, got.d_q, 2e-5, "d_q");
    expect_near(want.d_k, got.d_k, 2e-5, "d_k");
    expect_near(want.d_v, got.d_v, 2e-5, "d_v");
}

const Case kCases[] = {
    {{2, 64, 64, 2, 1, 64, 0.125f}, Mask::causal},
    {{1, 200, 200, 2, 2, 16, 0.25f}, Mask::causal},
    {{2, 77, 77, 3, 2, 12, 0.3f}, Mask::causal},
    {{1, 33, 190, 1, 4, 64, 0.125f}, Mask::causal},
    {{1, 150, 131, 1, 1, 128, 0.09f}, Mask::full},
    {{2, 130, 130, 2, 1, 20, 0.2f}, Mask::documents},
    {{1, 1, 1, 1, 1, 1, 1.0f}, Mask::causal},
    {{1, 5, 3, 1, 3, 7, 0.4f}, Mask::full},
    {{1, 129, 129, 1, 2, 24, 0.2f}, Mask::permuted},
    {{1, 100, 100, 2, 1, 32, 0.2f}, Mask::blind_rows},
    {{1, 257, 257, 1, 1, 64, 0.125f}, Mask::documents},
    {{3, 70, 100, 1, 1, 8, 0.3f}, Mask::causal},
    {{1, 300, 300, 2, 1, 16, 0.25f, 100}, Mask::causal},
    {{2, 200, 200, 1, 2, 24, 0.2f, 1}, Mask::causal},
    {{1, 260, 260, 1, 1, 12, 0.3f, 70}, Mask::documents},
    {{1, 129, 129, 1, 2, 24, 0.2f, 40}, Mask::permuted},
    {{2, 130, 130, 2, 2, 20, 0.2f}, Mask::causal, 0.2},
    {{1, 200, 200, 1, 3, 16, 0.25f, 64}, Mask::documents, 0.5},
};

TEST(CpuAttention, MatchesDouble) {
    std::mt19937 rng(1);
    ThreadPool one(1), two(2), three(3);
    for (const Case& c : kCases) {
        SCOPED_TRACE(::testing::Message() << "seq " << c.shape.seq << " kv_seq " << c.shape.kv_seq << " head_dim "
                                          << c.shape.head_dim << " mask " << static_cast<int>(c.mask));
        const Inputs x = make_inputs(c, rng);
        const Results want = reference(c.shape, x);
        for (ThreadPool* pool : {&one, &two, &three}) expect_matches(want, run(*pool, c.shape, x));
        expect_matches(want, run<float>(two, c.shape, x, baseline::attention, baseline::attention_backward));
    }
}

// bfloat16 is widened exactly when blocks are packed: results are those of the float kernels on widened operands, rounded.
TEST(CpuAttention, Bfloat16IsFloatOnWidenedOperands) {
    std::mt19937 rng(5);
    for (int threads : {1, 2}) {
        ThreadPool pool(threads);
        for (const Case& c : kCases) {
            const auto narrow = [](std::vector<float>& v) {  // leaves the widened values in place
                std::vector<Bf16> out;
                for (float& f : v) f = out.emplace_back(f);
                return out;
            };
            const AttentionShape& s = c.shape;
            Inputs x = make_inputs(c, rng);
            const std::vector<Bf16> q = narrow(x.q), k = narrow(x.k), v = narrow(x.v), d_out = narrow(x.d_out);
            const AttentionMask mask = x.mask();
            const AlignedBytes workspace(
                std::max(attention_workspace_bytes(s, threads), attention_backward_workspace_bytes(s, threads)));
            std::vector<float> want(q.size()), want_lse(q.size() / s.head_dim), lse(want_lse.size()), want_dq(q.size()),
                want_dk(k.size()), want_dv(k.size());
            std::vector<Bf16> out(q.size()), d_q(q.size()), d_k(k.size()), d_v(k.size());
            attention(pool, s, mask, x.q.data(), x.k.data(), x.v.data(), want.data(), want_lse.data(), workspace.data.get());
            attention(pool, s, mask, q.data(), k.data(), v.data(), out.data(), lse.data(), workspace.data.get());
            EXPECT_EQ(want_lse, lse);
            EXPECT_EQ(rounded(want), bits(out));
            attention_backward(pool, s, mask, x.q.data(), x.k.data(), x.v.data(), lse.data(), x.d_out.data(), want_dq.data(),
                               want_dk.data(), want_dv.data(), workspace.data.get());
            attention_backward(pool, s, mask, q.data(), k.data(), v.data(), lse.data(), d_out.data(), d_q.data(), d_k.data(),
                               d_v.data(), workspace.data.get());
            EXPECT_EQ(rounded(want_dq), bits(d_q));
            EXPECT_EQ(rounded(want_dk), bits(d_k));
            EXPECT_EQ(rounded(want_dv), bits(d_v));
        }
    }
}

// Rounds in place, so that a reference and a kernel see the same numbers.
void round_to_bf16(Inputs& x) {
    for (std::vector<float>* v : {&x.q, &x.k, &x.v, &x.d_out})
        for (float& f : *v) f = Bf16(f);
}

// The size of the error by that of what is wanted.
double relative_error(const std::vector<double>& want, const std::vector<float>& got) {
    double error = 0, size = 0;
    for (size_t i = 0; i < want.size(); ++i) error += std::pow(want[i] - got[i], 2), size += want[i] * want[i];
    return size == 0 ? std::sqrt(error) : std::sqrt(error / size);
}

// Scores of -200, so that exp(0 - lse) is infinite, and positions below zero: what fills up the last block of keys counts
// nowhere.
TEST(CpuAttention, KeysThatAreNotThereCountNowhere) {
    std::mt19937 rng(8);
    ThreadPool pool(1);
    for (int64_t window : {0, 40}) {
        for (double dropout : {0.0, 0.2}) {
            SCOPED_TRACE(::testing::Message() << "window " << window << " dropout " << dropout);
            const AttentionShape s{1, 70, 70, 1, 1, 16, 0.125f, window};
            Inputs x = make_inputs({s, Mask::causal, dropout}, rng);
            for (size_t i = 0; i < x.q.size(); i += static_cast<size_t>(s.head_dim)) x.q[i] = 40, x.k[i] = -40;
            for (size_t i = 0; i < x.pos.size(); ++i) x.pos[i] -= 100, x.kv_pos[i] -= 100;
            round_to_bf16(x);
            const Results want = reference(s, x);
            for (const Outputs& got :
                 {run(pool, s, x), run<float>(pool, s, x, baseline::attention, baseline::attention_backward)}) {
                expect_near(want.out, got.out, 1e-4, "out");
                expect_near(want.d_q, got.d_q, 1e-3, "d_q");
                expect_near(want.d_k, got.d_k, 1e-3, "d_k");
                expect_near(want.d_v, got.d_v, 1e-4, "d_v");
            }
            if (!has_amx()) continue;
            const Outputs got = run_amx(pool, s, x);
            EXPECT_LT(relative_error(want.out, got.out), 0.01);
            EXPECT_LT(relative_error(want.d_q, got.d_q), 0.03);  // the rounding of dS, times 40
            EXPECT_LT(relative_error(want.d_k, got.d_k), 0.01);
            EXPECT_LT(relative_error(want.d_v, got.d_v), 0.01);
        }
    }
}

// Results, P and dS are rounded to bfloat16 (2^-9 of each, 0.002), sums and the softmax are not.
TEST(CpuAttention, AmxMatchesDouble) {
    if (!has_amx()) GTEST_SKIP() << "this processor has no AMX";
    std::mt19937 rng(6);
    ThreadPool one(1), two(2), three(3);
    std::vector<Case> cases(std::begin(kCases), std::end(kCases));
    cases.push_back({{1, 190, 190, 1, 1, 80, 0.11f}, Mask::causal});
    cases.push_back({{1, 300, 300, 1, 1, 96, 0.1f, 50}, Mask::documents, 0.1});
    for (const Case& c : cases) {
        SCOPED_TRACE(::testing::Message() << "seq " << c.shape.seq << " kv_seq " << c.shape.kv_seq << " head_dim "
                                          << c.shape.head_dim << " mask " << static_cast<int>(c.mask));
        Inputs x = make_inputs(c, rng);
        round_to_bf16(x);
        const Results want = reference(c.shape, x);
        const Outputs first = run_amx(one, c.shape, x);
        for (ThreadPool* pool : {&one, &two, &three}) {
            const Outputs got = run_amx(*pool, c.shape, x);
            expect_near(want.lse, got.lse, 2e-6, "lse");
            expect_near(want.out, got.out, 0.006, "out");
            expect_near(want.d_q, got.d_q, 0.02, "d_q");
            expect_near(want.d_k, got.d_k, 0.02, "d_k");
            expect_near(want.d_v, got.d_v, 0.02, "d_v");
            EXPECT_LT(relative_error(want.out, got.out), 0.003);
            EXPECT_LT(relative_error(want.d_q, got.d_q), 0.005);
            EXPECT_LT(relative_error(want.d_k, got.d_k), 0.005);
            EXPECT_LT(relative_error(want.d_v, got.d_v), 0.005);
            const bool same = first.out == got.out && first.lse == got.lse && first.d_q == got.d_q;
            EXPECT_TRUE(same) << "bits depend on the number of threads";
        }
    }
}

// Attention over all keys by blocks of a ring. Block i has the keys [cuts[i], cuts[i + 1]) of each sequence; they come in the
// given order.
struct Ring {
    std::vector<int64_t> cuts;
    std::vector<size_t> order;
};

template <class E>
std::vector<E> keys_of(const std::vector<E>& all, const AttentionShape& s, int64_t begin, int64_t end) {
    const int64_t row = static_cast<int64_t>(all.size()) / (s.batch * s.kv_seq);
    std::vector<E> out;
    for (int64_t b = 0; b < s.batch; ++b)
        out.insert(out.end(), all.begin() + (b * s.kv_seq + begin) * row, all.begin() + (b * s.kv_seq + end) * row);
    return out;
}
void put_keys(std::vector<float>& all, const AttentionShape& s, int64_t begin, int64_t end, const std::vector<float>& part) {
    const int64_t row = static_cast<int64_t>(all.size()) / (s.batch * s.kv_seq), n = (end - begin) * row;
    for (int64_t b = 0; b < s.batch; ++b) std::copy_n(part.begin() + b * n, n, all.begin() + (b * s.kv_seq + begin) * row);
}

template <class T>
Outputs run_ring(ThreadPool& pool, const AttentionShape& s, const Inputs& x, const Ring& ring, AttentionBlock<T>* forward,
                 AttentionBlockBackward<T>* backward, AttentionKernel kernel = AttentionKernel::floats) {
    const auto stored = [](const std::vector<float>& v) { return std::vector<T>(v.begin(), v.end()); };
    const std::vector<T> q = stored(x.q), d_out = stored(x.d_out);
    Outputs r;
    r.out.assign(q.size(), NAN), r.d_q = r.out, r.lse.assign(q.size() / s.head_dim, NAN);
    r.d_k.assign(x.k.size(), NAN), r.d_v = r.d_k;
    const auto each_block = [&](const auto& visit) {
        for (size_t i = 0; i < ring.order.size(); ++i) {
            const int64_t begin = ring.cuts[ring.order[i]], end = ring.cuts[ring.order[i] + 1];
            AttentionShape part = s;
            part.kv_seq = end - begin;
            const std::vector<int32_t> pos = keys_of(x.kv_pos, s, begin, end), doc = keys_of(x.kv_doc, s, begin, end);
            AttentionMask mask = x.mask();
            mask.kv_pos = pos.data(), mask.kv_doc = doc.data();
            visit(part, mask, i == 0 ? RingBlock::first : RingBlock::later, stored(keys_of(x.k, s, begin, end)),
                  stored(keys_of(x.v, s, begin, end)), begin, end);
        }
    };
    each_block([&](const AttentionShape& part, const AttentionMask& mask, RingBlock block, const std::vector<T>& k,
                   const std::vector<T>& v, int64_t, int64_t) {
        const AlignedBytes workspace(attention_workspace_bytes(part, pool.threads(), kernel));
        forward(pool, part, mask, block, q.data(), k.data(), v.data(), r.out.data(), r.lse.data(), workspace.data.get());
    });
    const std::vector<T> out = stored(r.out);
    each_block([&](const AttentionShape& part, const AttentionMask& mask, RingBlock block, const std::vector<T>& k,
                   const std::vector<T>& v, int64_t begin, int64_t end) {
        std::vector<float> d_k(k.size(), NAN), d_v(k.size(), NAN);
        const AlignedBytes workspace(attention_block_backward_workspace_bytes(part, pool.threads(), kernel));
        backward(pool, part, mask, block, q.data(), k.data(), v.data(), out.data(), r.lse.data(), d_out.data(), r.d_q.data(),
                 d_k.data(), d_v.data(), workspace.data.get());
        put_keys(r.d_k, s, begin, end, d_k), put_keys(r.d_v, s, begin, end, d_v);
    });
    return r;
}
Outputs run_ring(ThreadPool& pool, const AttentionShape& s, const Inputs& x, const Ring& ring) {
    return run_ring<float>(pool, s, x, ring, attention_block, attention_block_backward);
}

// One to four blocks of any sizes, in any order.
Ring any_ring(int64_t keys, std::mt19937& rng) {
    Ring ring{{0, keys}, {}};
    for (uint64_t more = rng() % 4; more > 0; --more) {
        const auto cut = static_cast<int64_t>(rng() % static_cast<uint64_t>(keys));
        if (std::find(ring.cuts.begin(), ring.cuts.end(), cut) == ring.cuts.end()) ring.cuts.push_back(cut);
    }
    std::sort(ring.cuts.begin(), ring.cuts.end());
    for (size_t i = 0; i + 1 < ring.cuts.size(); ++i) ring.order.push_back(i);
    std::shuffle(ring.order.begin(), ring.order.end(), rng);
    return ring;
}

TEST(CpuAttention, BlocksOfARingAreAttentionOverAllKeys) {
    std::mt19937 rng(11);
    ThreadPool one(1), two(2), three(3);
    for (int round = 0; round < 4; ++round) {
        for (const Case& c : kCases) {
            const Ring ring = any_ring(c.shape.kv_seq, rng);
            SCOPED_TRACE(::testing::Message()
                         << "seq " << c.shape.seq << " kv_seq " << c.shape.kv_seq << " head_dim " << c.shape.head_dim << " mask "
                         << static_cast<int>(c.mask) << " cut at " << ::testing::PrintToString(ring.cuts) << ", order "
                         << ::testing::PrintToString(ring.order));
            const Inputs x = make_inputs(c, rng);
            const Results want = reference(c.shape, x);
            const Outputs first = run_ring(one, c.shape, x, ring);
            expect_matches(want, first);
            for (ThreadPool* pool : {&two, &three}) {
                const Outputs got = run_ring(*pool, c.shape, x, ring);
                expect_matches(want, got);
                const bool same = first.out == got.out && first.lse == got.lse && first.d_q == got.d_q;
                EXPECT_TRUE(same) << "bits depend on the number of threads";
            }
            expect_matches(want,
                           run_ring<float>(two, c.shape, x, ring, baseline::attention_block, baseline::attention_block_backward));
        }
    }
}

// Keys that no query sees leave sums as they are, to the bit, and have gradients of zero.
TEST(CpuAttention, ABlockThatNobodySeesChangesNothing) {
    std::mt19937 rng(12);
    ThreadPool pool(2);
    for (const bool other_document : {true, false}) {
        const AttentionShape s{2, 130, 260, 1, 2, 24, 0.2f};
        Inputs x = make_inputs({s, Mask::causal}, rng);
        for (size_t i = 0; i < x.kv_pos.size(); ++i) {
            const bool hidden = i % static_cast<size_t>(s.kv_seq) >= 130;
            if (hidden && other_document) x.kv_doc[i] = 7;
            else x.kv_pos[i] = hidden ? 1000 : x.kv_pos[i];
        }
        const Ring without{{0, 130}, {0}}, last{{0, 130, 260}, {0, 1}}, first{{0, 130, 260}, {1, 0}}, alone{{130, 260}, {0}};
        const Outputs want = run_ring(pool, s, x, without), behind = run_ring(pool, s, x, last),
                      before = run_ring(pool, s, x, first), nothing = run_ring(pool, s, x, alone);
        for (const Outputs* got : {&behind, &before}) {
            EXPECT_TRUE(got->out == want.out && got->lse == want.lse && got->d_q == want.d_q);
            for (const auto& [all, of] : {std::pair{&want.d_k, &got->d_k}, {&want.d_v, &got->d_v}}) {
                EXPECT_EQ(keys_of(*all, s, 0, 130), keys_of(*of, s, 0, 130));
                for (const float v : keys_of(*of, s, 130, 260)) EXPECT_EQ(v, 0);
            }
        }
        for (const std::vector<float>* zeros : {&nothing.out, &nothing.d_q})
            for (const float v : *zeros) EXPECT_EQ(v, 0);
        for (const float v : nothing.lse) EXPECT_EQ(v, -std::numeric_limits<float>::infinity());
    }
}

// Stored as bfloat16, sixteen blocks: a result that is rounded between blocks, or gradients that are, would be several times as
// far. delta is of the rounded result.
TEST(CpuAttention, SixteenBlocksOfBfloat16AreAsPreciseAsOne) {
    std::mt19937 rng(13);
    ThreadPool pool(2);
    const AttentionShape s{1, 512, 512, 2, 2, 64, 0.125f};
    Inputs x = make_inputs({s, Mask::causal}, rng);
    round_to_bf16(x);
    const Results want = reference(s, x);
    Ring ring{{0}, {}};
    for (int64_t i = 0; i < 16; ++i) ring.cuts.push_back((i + 1) * 32), ring.order.push_back(static_cast<size_t>(15 - i));
    const auto hold = [&](const Outputs& one, const Outputs& got, double exact, double rounded) {
        EXPECT_LT(relative_error(want.out, got.out), exact);
        EXPECT_LT(relative_error(want.d_v, got.d_v), exact);
        EXPECT_LT(relative_error(want.d_q, got.d_q), rounded);
        EXPECT_LT(relative_error(want.d_k, got.d_k), rounded);
        expect_near(want.lse, got.lse, 2e-6, "lse");
        EXPECT_LT(relative_error(want.d_q, got.d_q), 1.1 * relative_error(want.d_q, one.d_q));
        EXPECT_LT(relative_error(want.d_k, got.d_k), 1.1 * relative_error(want.d_k, one.d_k));
    };
    const auto floats = [&] { return run<Bf16>(pool, s, x, attention, attention_backward); };
    hold(floats(), run_ring<Bf16>(pool, s, x, ring, attention_block, attention_block_backward), 1e-5, 1e-3);
    if (has_amx())
        hold(run_amx(pool, s, x),
             run_ring<Bf16>(pool, s, x, ring, attention_block_amx, attention_block_backward_amx, AttentionKernel::amx), 0.003,
             0.005);
}

TEST(CpuAttention, BlocksByAmxMatchDouble) {
    if (!has_amx()) GTEST_SKIP() << "this processor has no AMX";
    std::mt19937 rng(14);
    ThreadPool one(1), two(2);
    for (const Case& c : kCases) {
        Inputs x = make_inputs(c, rng);
        round_to_bf16(x);
        const Results want = reference(c.shape, x);
        for (ThreadPool* pool : {&one, &two}) {
            const Outputs got = run_ring<Bf16>(*pool, c.shape, x, any_ring(c.shape.kv_seq, rng), attention_block_amx,
                                               attention_block_backward_amx, AttentionKernel::amx);
            expect_near(want.lse, got.lse, 2e-6, "lse");
            expect_near(want.out, got.out, 0.006, "out");
            expect_near(want.d_q, got.d_q, 0.02, "d_q");
            expect_near(want.d_k, got.d_k, 0.02, "d_k");
            expect_near(want.d_v, got.d_v, 0.02, "d_v");
        }
    }
}

// What is chosen without a table; one query a sequence has a kernel of its own.
TEST(CpuAttention, AmxIsTheFirstChoiceForBfloat16WhereItIs) {
    std::vector<std::string> forward, backward;
    for (const ops::KernelEntry& e : cpu_catalog(1).entries) {
        if (e.dtype != Dtype::BF16) continue;
        if (e.op == "attention") forward.push_back(e.kernel);
        if (e.op == "attention_backward") backward.push_back(e.kernel);
    }
    ASSERT_GE(forward.size(), 2u);
    EXPECT_EQ(forward[0], "cpu.attention_row");
    EXPECT_EQ(forward[1], has_amx() ? "cpu.attention_amx" : "cpu.attention");
    EXPECT_EQ(backward.at(0), has_amx() ? "cpu.attention_backward_amx" : "cpu.attention_backward");
    // Blocks of a ring give float32 of any type: three kernels of float come first.
    for (const std::string op : {"attention_block", "attention_block_backward"}) {
        std::vector<std::string> blocks;
        for (const ops::KernelEntry& e : cpu_catalog(1).entries) {
            if (e.op == op && e.dtype == Dtype::F32) blocks.push_back(e.kernel);
        }
        EXPECT_EQ(blocks.at(0), "cpu." + op);
        EXPECT_EQ(blocks.at(3), "cpu." + op + (has_amx() ? "_amx" : ""));
    }
}

TEST(CpuAttention, RowsAgainstACacheMatchDouble) {
    std::mt19937 rng(4);
    ThreadPool one(1), two(2), three(3);
    std::vector<Case> cases(std::begin(kCases), std::end(kCases));
    std::erase_if(cases, [](const Case& c) { return c.dropout > 0; });  // it serves evaluation alone
    cases.push_back({{3, 1, 90, 2, 3, 10, 0.3f, 40}, Mask::causal});
    for (int64_t kv_seq : {1, 2, 31, 300})
        cases.push_back({{3, 1, kv_seq, 2, 3, 10, 0.3f}, kv_seq == 31 ? Mask::permuted : Mask::causal});
    for (const Case& c : cases) {
        SCOPED_TRACE(::testing::Message() << "seq " << c.shape.seq << " kv_seq " << c.shape.kv_seq << " head_dim "
                                          << c.shape.head_dim << " mask " << static_cast<int>(c.mask));
        const Inputs x = make_inputs(c, rng);
        const Results want = reference(c.shape, x);
        std::vector<float> first;
        Attention<float>*const row = attention_row, *const row_baseline = baseline::attention_row;
        for (const auto& [pool, kernel] :
             {std::pair{&one, row}, std::pair{&two, row}, std::pair{&three, row}, std::pair{&two, row_baseline}}) {
            std::vector<float> out(x.q.size(), NAN), lse(x.q.size() / static_cast<size_t>(c.shape.head_dim), NAN);
            const AlignedBytes workspace(attention_row_workspace_bytes(c.shape, pool->threads()));
            kernel(*pool, c.shape, x.mask(), x.q.data(), x.k.data(), x.v.data(), out.data(), lse.data(), workspace.data.get());
            expect_near(want.out, out, 2e-6, "out");
            expect_near(want.lse, lse, 2e-6, "lse");
            if (first.empty()) first = out;
            const bool same = first == out || kernel != row;
            EXPECT_TRUE(same) << "bits depend on the number of threads";
        }
    }
}

TEST(CpuAttention, LargeScoresDoNotOverflow) {
    std::mt19937 rng(2);
    const Case c{{1, 70, 70, 1, 1, 16, 40.0f}, Mask::causal};
    const Inputs x = make_inputs(c, rng);
    ThreadPool pool(1);
    const Outputs got = run(pool, c.shape, x);
    expect_near(reference(c.shape, x).out, got.out, 2e-4, "out");
    for (float g : got.d_q) EXPECT_TRUE(std::isfinite(g));
}

TEST(CpuAttention, SameBitsEveryTime) {
    std::mt19937 rng(3);
    const Case c{{1, 150, 150, 1, 3, 32, 0.2f}, Mask::causal};
    const Inputs x = make_inputs(c, rng);
    ThreadPool pool(2);
    const Outputs first = run(pool, c.shape, x);
    for (int round = 0; round < 5; ++round) EXPECT_TRUE(first == run(pool, c.shape, x));
}

TEST(CpuAttention, RanksInParallel) {
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < 3; ++rank)
        ranks.emplace_back([rank] {
            std::mt19937 rng(rank);
            ThreadPool pool(1 + rank % 2);
            const Case& c = kCases[rank + 1];
            const Inputs x = make_inputs(c, rng);
            expect_matches(reference(c.shape, x), run(pool, c.shape, x));
        });
    for (std::thread& rank : ranks) rank.join();
}

}  // namespace
}  // namespace lockstep::kernels::cpu
