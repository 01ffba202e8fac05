// Attention of a GPU on the emulator against double: shapes that take several tiles and do not fill them, groups, windows, packed
// documents, dropout, decoding; each in three orders of warps with equal bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/random.h"
#include "kernels/gpu/attention.h"
#include "kernels/gpu/attention_workspace.h"
#include "kernels/gpu/emulator.h"

namespace lockstep::testing {
namespace {

using namespace kernels;
using namespace kernels::gpu;
using emulator::Order;

constexpr double kInfinite = std::numeric_limits<double>::infinity();

struct Case {
    const char* name;
    AttentionShape shape;  // scale: 1 / sqrt(head_dim)
    int documents = 1;     // packed one behind the other; positions begin anew
    double dropout = 0;
    int64_t unseen = 0;  // so many of the first queries belong to a document without keys
};

template <class T>
struct Operands {
    std::vector<T> q, k, v, d_out;
    std::vector<int32_t> pos, kv_pos, doc, kv_doc, noise;
};
template <class T>
struct AttentionResults {
    std::vector<T> out, d_q, d_k, d_v;
    std::vector<float> lse;
};

// Tokens of a sequence; the last ones where there are fewer than `of`.
void lay_out(int64_t batch, int64_t tokens, int64_t of, int documents, std::vector<int32_t>& pos, std::vector<int32_t>& doc) {
    const int64_t length = (of + documents - 1) / documents;
    for (int64_t i = 0; i < batch * tokens; ++i) {
        const int64_t token = of - tokens + i % tokens;
        pos.push_back(static_cast<int32_t>(token % length)), doc.push_back(static_cast<int32_t>(token / length));
    }
}

template <class T>
Operands<T> operands_of(const Case& c, unsigned seed) {
    const AttentionShape& s = c.shape;
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    Operands<T> x;
    const auto draw = [&](std::vector<T>& values, int64_t n) {
        for (int64_t i = 0; i < n; ++i) values.push_back(T(normal(random)));
    };
    const int64_t queries = s.batch * s.seq * s.kv_heads * s.group, keys = s.batch * s.kv_seq * s.kv_heads;
    draw(x.q, queries * s.head_dim), draw(x.k, keys * s.head_dim), draw(x.v, keys * s.head_dim);
    draw(x.d_out, queries * s.head_dim);
    const int64_t most = std::max(s.seq, s.kv_seq);
    lay_out(s.batch, s.seq, most, c.documents, x.pos, x.doc), lay_out(s.batch, s.kv_seq, most, c.documents, x.kv_pos, x.kv_doc);
    for (int64_t i = 0; i < c.unseen; ++i) x.doc[static_cast<size_t>(i)] = 1000;
    for (int64_t i = 0; i < s.batch * s.seq; ++i) x.noise.push_back(static_cast<int32_t>(random()));
    return x;
}

template <class T>
AttentionMask mask_of(const Case& c, const Operands<T>& x) {
    AttentionMask mask{x.pos.data(), x.kv_pos.data(), x.doc.data(), x.kv_doc.data(), {}};
    if (c.dropout > 0)
        mask.drop = {x.noise.data(), 77, dropout_threshold(c.dropout), static_cast<float>(1 / (1 - c.dropout)), 2, 1, 9};
    return mask;
}

// A workspace of exactly as many bytes, filled with NaN.
class Workspace {
public:
    explicit Workspace(int64_t bytes) : chunks_(static_cast<size_t>(bytes + 15) / 16, Chunk{{-1, -1}}) {}
    void* get() { return chunks_.data(); }

private:
    struct alignas(16) Chunk {
        int64_t of[2];
    };
    std::vector<Chunk> chunks_;
};

template <class T>
AttentionResults<T> run(const Case& c, const Operands<T>& x, bool backward) {
    const AttentionShape& s = c.shape;
    const AttentionMask mask = mask_of(c, x);
    AttentionResults<T> r;
    r.out.resize(x.q.size(), T(NAN)), r.lse.resize(x.q.size() / static_cast<size_t>(s.head_dim), NAN);
    Workspace forward(attention_workspace_bytes(s));
    attention(nullptr, s, mask, x.q.data(), x.k.data(), x.v.data(), r.out.data(), r.lse.data(), forward.get());
    if (!backward) return r;
    r.d_q.resize(x.q.size(), T(NAN)), r.d_k.resize(x.k.size(), T(NAN)), r.d_v.resize(x.v.size(), T(NAN));
    Workspace workspace(attention_backward_workspace_bytes(s));
    attention_backward(nullptr, s, mask, x.q.data(), x.k.data(), x.v.data(), r.out.data(), r.lse.data(), x.d_out.data(),
                       r.d_q.data(), r.d_k.data(), r.d_v.data(), workspace.get());
    return r;
}

// In double, from `out` as it is stored.
template <class T>
AttentionResults<double> exact(const Case& c, const Operands<T>& x, const std::vector<T>& out) {
    const AttentionShape& s = c.shape;
    const AttentionMask mask = mask_of(c, x);
    const auto d = static_cast<size_t>(s.head_dim);
    AttentionResults<double> r;
    r.out.resize(x.q.size()), r.d_q.resize(x.q.size()), r.d_k.resize(x.k.size()), r.d_v.resize(x.v.size());
    std::vector<double> p(static_cast<size_t>(s.kv_seq)), kept(p.size());
    for (int64_t row = 0; row < s.batch * s.seq * s.kv_heads * s.group; ++row) {
        const int64_t head = row / s.group % s.kv_heads, token = row / s.group / s.kv_heads, b = token / s.seq;
        const T *const q = &x.q[static_cast<size_t>(row) * d], *const d_out = &x.d_out[static_cast<size_t>(row) * d];
        const int64_t id = (mask.drop.first_head + head) * mask.drop.members + mask.drop.first_member + row % s.group;
        const auto key_at = [&](int64_t t) { return static_cast<size_t>((b * s.kv_seq + t) * s.kv_heads + head) * d; };
        const auto dot = [&](const T* u, const T* v) {
            double sum = 0;
            for (size_t i = 0; i < d; ++i) sum += static_cast<double>(static_cast<float>(u[i])) * static_cast<float>(v[i]);
            return sum;
        };
        double most = -kInfinite, sum = 0;
        for (int64_t t = 0; t < s.kv_seq; ++t) {
            const int64_t apart = int64_t{mask.pos[token]} - mask.kv_pos[b * s.kv_seq + t];
            const bool seen =
                apart >= 0 && (s.window == 0 || apart < s.window) && mask.doc[token] == mask.kv_doc[b * s.kv_seq + t];
            p[static_cast<size_t>(t)] = seen ? s.scale * dot(q, &x.k[key_at(t)]) : -kInfinite;
            most = std::max(most, p[static_cast<size_t>(t)]);
            kept[static_cast<size_t>(t)] = 1;
            if (!mask.drop.noise) continue;
            const uint64_t bits =
                dropout_row(mask.drop.stream, static_cast<uint32_t>(mask.drop.noise[token]), static_cast<uint64_t>(id));
            const auto position = static_cast<uint32_t>(mask.kv_pos[b * s.kv_seq + t]);
            kept[static_cast<size_t>(t)] = dropout_bits(bits, position) >= mask.drop.threshold ? mask.drop.scale : 0;
        }
        for (double& v : p) sum += v = v == -kInfinite ? 0 : std::exp(v - most);
        r.lse.push_back(sum > 0 ? static_cast<float>(most + std::log(sum)) : -INFINITY);
        const double delta = dot(d_out, &out[static_cast<size_t>(row) * d]);
        for (int64_t t = 0; t < s.kv_seq; ++t) {
            if (p[static_cast<size_t>(t)] == 0) continue;
            const double of_key = p[static_cast<size_t>(t)] / sum, keep = kept[static_cast<size_t>(t)];
            const size_t key = key_at(t);
            const double ds = s.scale * of_key * (keep * dot(d_out, &x.v[key]) - delta);
            for (size_t i = 0; i < d; ++i) {
                const size_t at = static_cast<size_t>(row) * d + i;
                r.out[at] += of_key * keep * static_cast<float>(x.v[key + i]);
                r.d_q[at] += ds * static_cast<float>(x.k[key + i]);
                r.d_k[key + i] += ds * static_cast<float>(q[i]);
                r.d_v[key + i] += of_key * keep * static_cast<float>(d_out[i]);
            }
        }
    }
    return r;
}

// The largest difference, over the largest value; infinite where something is not a number.
template <class T, class U>
double error(const std::vector<T>& got, const std::vector<U>& want) {
    double worst = got.size() == want.size() ? 0 : kInfinite, most = 1e-30;
    for (size_t i = 0; i < std::min(got.size(), want.size()); ++i) {
        const double g = static_cast<float>(got[i]), w = want[i];
        if (g == w) continue;  // infinities, too
        if (!(std::abs(g - w) <= worst)) worst = std::isnan(g - w) ? kInfinite : std::abs(g - w);
        if (std::isfinite(w)) most = std::max(most, std::abs(w));
    }
    return worst / most;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
    return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

AttentionShape shape(int64_t batch, int64_t seq, int64_t kv_seq, int64_t kv_heads, int64_t group, int64_t d, int64_t window = 0) {
    return {batch, seq, kv_seq, kv_heads, group, d, 1 / std::sqrt(static_cast<float>(d)), window};
}

template <class T>
void hold_to_double(const std::vector<Case>& cases, double tolerance, bool backward = true) {
    for (const Case& c : cases) {
        const Operands<T> x = operands_of<T>(c, 5);
        emulator::set_order(Order::Ascending);
        const AttentionResults<T> got = run(c, x, backward);
        const AttentionResults<double> want = exact(c, x, got.out);
        EXPECT_LE(error(got.out, want.out), tolerance) << c.name;
        EXPECT_LE(error(got.lse, want.lse), 1e-5) << c.name;
        if (backward) {
            EXPECT_LE(error(got.d_q, want.d_q), tolerance) << c.name;
            EXPECT_LE(error(got.d_k, want.d_k), tolerance) << c.name;
            EXPECT_LE(error(got.d_v, want.d_v), tolerance) << c.name;
        }
        for (const Order order : {Order::Descending, Order::Shuffled}) {
            emulator::set_order(order, 11);
            const AttentionResults<T> other = run(c, x, backward);
            EXPECT_TRUE(same_bits(got.out, other.out) && same_bits(got.lse, other.lse) && same_bits(got.d_q, other.d_q) &&
                        same_bits(got.d_k, other.d_k) && same_bits(got.d_v, other.d_v))
                << c.name << ": another order of warps gives other bits";
        }
    }
    emulator::set_order(Order::Ascending);
}

const std::vector<Case> kNarrowCases = {
    {"several blocks", shape(1, 150, 150, 2, 1, 64)},
    {"documents, a group of 7", shape(1, 75, 75, 1, 7, 64), 3},
    {"a window", shape(1, 140, 140, 1, 2, 96, 37)},
    {"dropout", shape(2, 70, 70, 1, 2, 128), 2, 0.2},
    {"more keys than queries", shape(1, 40, 101, 1, 3, 128)},
    {"fewer keys than queries", shape(1, 80, 33, 1, 1, 32), 2},
    {"the largest head, dropout", shape(1, 45, 70, 1, 1, 256, 50), 1, 0.4},
    {"between two sizes", shape(1, 50, 50, 2, 1, 200), 2},
    {"between two others", shape(1, 50, 50, 1, 1, 72)},
    {"queries without keys", shape(1, 90, 90, 1, 1, 64), 1, 0, 40},
    {"no query has a key", shape(1, 70, 70, 1, 1, 128), 1, 0, 70},
};

TEST(GpuAttention, AgreesWithDoubleInBfloat16) { hold_to_double<Bf16>(kNarrowCases, 0x1p-6); }
TEST(GpuAttention, AgreesWithDoubleInFloat16) {
    hold_to_double<F16>({kNarrowCases[1], kNarrowCases[3], kNarrowCases[6]}, 0x1p-9);
}

TEST(GpuAttention, AgreesWithDoubleInFloat32AndOddHeads) {
    hold_to_double<float>({{"a group of 3", shape(1, 50, 50, 1, 3, 64), 2},
                           {"a window, dropout", shape(1, 70, 70, 1, 1, 128, 20), 1, 0.3},
                           {"the largest head", shape(1, 35, 40, 1, 2, 256)},
                           {"an odd head", shape(2, 40, 70, 1, 1, 37), 2},
                           {"queries without keys", shape(1, 40, 40, 1, 1, 8), 1, 0, 35},
                           {"no query has a key", shape(1, 40, 40, 1, 1, 8), 1, 0, 40}},
                          1e-5);
    hold_to_double<Bf16>({{"an odd head", shape(1, 50, 50, 2, 2, 20), 2, 0.1}}, 0x1p-7);
    hold_to_double<F16>({{"an odd head", shape(1, 30, 30, 1, 1, 255)}}, 0x1p-9);
}

// One query, or few, over keys that several blocks share.
TEST(GpuAttention, OfFewQueriesAgreesWithDouble) {
    const std::vector<Case> cases = {{"one query", shape(2, 1, 1100, 2, 4, 128)},
                                     {"one query in a window", shape(1, 1, 1500, 2, 1, 64, 600)},
                                     {"three queries, dropout", shape(1, 3, 700, 1, 7, 96), 1, 0.2},
                                     {"queries without keys", shape(1, 4, 600, 1, 1, 256), 1, 0, 2}};
    hold_to_double<Bf16>(cases, 0x1p-7, false);
    hold_to_double<float>({cases[0], cases[2], cases[3]}, 1e-5, false);
    hold_to_double<Bf16>({{"an odd head", shape(1, 1, 600, 1, 2, 20)}}, 0x1p-7);
}

// Keys [begin, end) of each sequence, as a block has them.
template <class T>
Operands<T> keys_of(const Case& c, const Operands<T>& x, int64_t begin, int64_t end) {
    const AttentionShape& s = c.shape;
    Operands<T> block = x;
    block.k.clear(), block.v.clear(), block.kv_pos.clear(), block.kv_doc.clear();
    const int64_t width = s.kv_heads * s.head_dim;
    for (int64_t b = 0; b < s.batch; ++b) {
        const auto append = [&](auto& to, const auto& from, int64_t each) {
            to.insert(to.end(), from.begin() + (b * s.kv_seq + begin) * each, from.begin() + (b * s.kv_seq + end) * each);
        };
        append(block.k, x.k, width), append(block.v, x.v, width);
        append(block.kv_pos, x.kv_pos, 1), append(block.kv_doc, x.kv_doc, 1);
    }
    return block;
}

// The sums of all blocks: gradients of keys and values in the order of the sequence, everything as float.
template <class T>
AttentionResults<float> run_in_blocks(const Case& c, const Operands<T>& x, const std::vector<int64_t>& borders,
                                      AttentionResults<T>& stored) {
    const AttentionShape& s = c.shape;
    AttentionResults<float> r;
    r.out.resize(x.q.size(), NAN), r.lse.resize(x.q.size() / static_cast<size_t>(s.head_dim), NAN);
    const auto each = [&](auto f) {
        for (size_t i = 0; i + 1 < borders.size(); ++i) {
            Case block = c;
            block.shape.kv_seq = borders[i + 1] - borders[i];
            const Operands<T> y = keys_of(c, x, borders[i], borders[i + 1]);
            AttentionMask mask = mask_of(block, y);
            f(block.shape, y, mask, borders[i], i > 0);
        }
    };
    each([&](const AttentionShape& b, const Operands<T>& y, const AttentionMask& mask, int64_t, bool carries) {
        Workspace workspace(attention_block_workspace_bytes(b, carries));
        attention_block(nullptr, b, mask, y.q.data(), y.k.data(), y.v.data(), carries, r.out.data(), r.lse.data(),
                        workspace.get());
    });
    stored.out.clear();
    for (const float x_out : r.out) stored.out.push_back(T(x_out));
    r.d_q.resize(x.q.size(), NAN), r.d_k.resize(x.k.size(), NAN), r.d_v.resize(x.v.size(), NAN);
    each([&](const AttentionShape& b, const Operands<T>& y, const AttentionMask& mask, int64_t begin, bool carries) {
        std::vector<float> d_k(y.k.size(), NAN), d_v(y.v.size(), NAN);
        Workspace workspace(attention_backward_workspace_bytes(b));
        attention_block_backward(nullptr, b, mask, y.q.data(), y.k.data(), y.v.data(), stored.out.data(), r.lse.data(),
                                 y.d_out.data(), carries, r.d_q.data(), d_k.data(), d_v.data(), workspace.get());
        const int64_t width = b.kv_heads * b.head_dim;
        for (int64_t i = 0; i < b.batch; ++i) {
            for (auto [from, to] : {std::pair{&d_k, &r.d_k}, std::pair{&d_v, &r.d_v}})
                std::copy_n(from->begin() + i * b.kv_seq * width, b.kv_seq * width, to->begin() + (i * s.kv_seq + begin) * width);
        }
    });
    return r;
}

template <class T>
void hold_blocks_to_double(const std::vector<Case>& cases, double tolerance) {
    for (const Case& c : cases) {
        const Operands<T> x = operands_of<T>(c, 5);
        const int64_t n = c.shape.kv_seq;
        for (const std::vector<int64_t>& borders :
             {std::vector<int64_t>{0, n}, std::vector<int64_t>{0, n / 3, n}, std::vector<int64_t>{0, 1, n / 2, n - 3, n}}) {
            emulator::set_order(Order::Ascending);
            AttentionResults<T> stored;
            const AttentionResults<float> got = run_in_blocks(c, x, borders, stored);
            const AttentionResults<double> want = exact(c, x, stored.out);
            EXPECT_LE(error(got.out, want.out), tolerance) << c.name << " in " << borders.size() - 1;
            EXPECT_LE(error(got.lse, want.lse), 1e-5) << c.name;
            EXPECT_LE(error(got.d_q, want.d_q), tolerance) << c.name;
            EXPECT_LE(error(got.d_k, want.d_k), tolerance) << c.name;
            EXPECT_LE(error(got.d_v, want.d_v), tolerance) << c.name;
            emulator::set_order(Order::Shuffled, 11);
            const AttentionResults<float> other = run_in_blocks(c, x, borders, stored);
            EXPECT_TRUE(same_bits(got.out, other.out) && same_bits(got.lse, other.lse) && same_bits(got.d_q, other.d_q) &&
                        same_bits(got.d_k, other.d_k) && same_bits(got.d_v, other.d_v))
                << c.name << ": another order of warps gives other bits";
        }
    }
    emulator::set_order(Order::Ascending);
}

TEST(GpuAttention, InBlocksOfKeysAgreesWithDouble) {
    hold_blocks_to_double<Bf16>(
        {kNarrowCases[1], kNarrowCases[2], kNarrowCases[3], kNarrowCases[6], kNarrowCases[9], kNarrowCases[10]}, 0x1p-6);
    hold_blocks_to_double<F16>({kNarrowCases[4]}, 0x1p-9);
    hold_blocks_to_double<float>({{"a group of 3", shape(1, 50, 50, 1, 3, 64), 2},
                                  {"a window, dropout", shape(1, 70, 70, 1, 1, 128, 20), 1, 0.3},
                                  {"queries without keys", shape(1, 40, 40, 1, 1, 8), 1, 0, 35}},
                                 1e-5);
    hold_blocks_to_double<Bf16>(
        {{"an odd head", shape(1, 50, 50, 2, 2, 20), 2, 0.1}, {"few queries", shape(1, 3, 900, 1, 2, 64), 1, 0.2}}, 0x1p-6);
}

// What no query of a block sees is not read: it may hold anything.
template <class T>
void expect_hidden_tiles_unread(int64_t d) {
    Case c{"", shape(1, 256, 256, 1, 1, d), 2};  // of documents of 128
    Operands<T> x = operands_of<T>(c, 6);
    const AttentionResults<T> want = run(c, x, true);
    const auto half = static_cast<std::ptrdiff_t>(x.q.size() / 2);
    for (std::vector<T>* operand : {&x.q, &x.k, &x.v, &x.d_out}) std::fill(operand->begin() + half, operand->end(), T(NAN));
    AttentionResults<T> got = run(c, x, true);
    for (std::vector<T> AttentionResults<T>::*result :
         {&AttentionResults<T>::out, &AttentionResults<T>::d_q, &AttentionResults<T>::d_k, &AttentionResults<T>::d_v}) {
        EXPECT_TRUE(std::equal((got.*result).begin(), (got.*result).begin() + half, (want.*result).begin(), [](T a, T b) {
            return static_cast<float>(a) == static_cast<float>(b);
        })) << d;
        EXPECT_TRUE(std::isnan(static_cast<float>((got.*result).back())));
    }
    // Before a window that ends 64 keys before the queries' last ones.
    c.documents = 1, c.shape.window = 40;
    Operands<T> y = operands_of<T>(c, 7);
    const auto begin = static_cast<std::ptrdiff_t>(128 * d);
    const AttentionResults<T> all = run(c, y, false);
    std::fill(y.k.begin(), y.k.begin() + 64 * d, T(NAN)), std::fill(y.v.begin(), y.v.begin() + 64 * d, T(NAN));
    got = run(c, y, false);
    EXPECT_TRUE(std::equal(got.out.begin() + begin, got.out.end(), all.out.begin() + begin, [](T a, T b) {
        return static_cast<float>(a) == static_cast<float>(b);
    })) << d;
}
TEST(GpuAttention, LeavesOutTilesThatNoQuerySees) {
    expect_hidden_tiles_unread<Bf16>(64);
    expect_hidden_tiles_unread<Bf16>(128);
    expect_hidden_tiles_unread<float>(16);
}

}  // namespace
}  // namespace lockstep::testing
