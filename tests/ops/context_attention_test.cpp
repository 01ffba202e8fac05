// Attention of one document over context ranks by the kernels of the module that LOCKSTEP_GPU_MODULE names, rank after rank:
// together they are the attention of the whole sequence in double.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/bfloat16.h"
#include "ir/text.h"
#include "kernels/kernel.h"
#include "mesh/order.h"
#include "ops/builder.h"
#include "passes/select_kernels.h"
#include "plugins/gpu_module.h"
#include "tests/ops/device_interpreter.h"

namespace lockstep::testing {
namespace {

using Numbers = std::vector<double>;

struct ContextCase {
    std::string name;
    bool rings = true, head_tail = true;
    int64_t ranks = 3, tokens = 128, batch = 2, kv_heads = 2, group = 2, head_dim = 64;  // tokens: of a rank
    bool is_by_cudnn = true;                                                             // else by our own kernels

    int64_t seq() const { return ranks * tokens; }
    int64_t heads() const { return kv_heads * group; }
    double scale() const { return 1 / std::sqrt(static_cast<double>(head_dim)); }
    int64_t order() const { return head_tail ? ranks : 1; }
    // Of the tokens that a rank has, from the first one on.
    std::vector<int64_t> positions(int64_t rank) const { return positions(rank * tokens, tokens); }
    std::vector<int64_t> positions(int64_t first, int64_t count) const {
        std::vector<int64_t> out;
        for (int64_t j = first; j < first + count; ++j) out.push_back(mesh::position_of(seq(), order(), j));
        return out;
    }
};
void PrintTo(const ContextCase& c, std::ostream* out) { *out << c.name; }

// Whole sequences in plain order: [batch, seq, heads.., head_dim], and lse [batch, seq, heads].
struct WholeAttention {
    Numbers q, k, v, d_out, out, lse, d_q, d_k, d_v;
};

Numbers draw_in_bfloat16(std::mt19937& random, int64_t count) {
    std::normal_distribution<float> normal;
    Numbers out;
    for (int64_t i = 0; i < count; ++i) out.push_back(static_cast<float>(Bf16(normal(random))));
    return out;
}
double dot(const double* a, const double* b, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
    return sum;
}
void add(double* to, double share, const double* x, int64_t n) {
    for (int64_t i = 0; i < n; ++i) to[i] += share * x[i];
}

WholeAttention whole_attention(const ContextCase& c) {
    std::mt19937 random(7);
    WholeAttention w;
    const int64_t d = c.head_dim, rows = c.batch * c.seq() * c.heads(), keys = c.batch * c.seq() * c.kv_heads;
    w.q = draw_in_bfloat16(random, rows * d), w.d_out = draw_in_bfloat16(random, rows * d);
    w.k = draw_in_bfloat16(random, keys * d), w.v = draw_in_bfloat16(random, keys * d);
    w.out.resize(w.q.size()), w.d_q.resize(w.q.size()), w.d_k.resize(w.k.size()), w.d_v.resize(w.v.size());
    Numbers p(static_cast<size_t>(c.seq()));
    for (int64_t row = 0; row < rows; ++row) {
        const int64_t head = row % c.heads(), token = row / c.heads() % c.seq(), b = row / c.heads() / c.seq();
        const auto key = [&](int64_t t) { return ((b * c.seq() + t) * c.kv_heads + head / c.group) * d; };
        double sum = 0;
        for (int64_t t = 0; t <= token; ++t)
            sum += p[static_cast<size_t>(t)] = std::exp(c.scale() * dot(&w.q[row * d], &w.k[key(t)], d));
        w.lse.push_back(std::log(sum));
        for (int64_t t = 0; t <= token; ++t) add(&w.out[row * d], p[static_cast<size_t>(t)] / sum, &w.v[key(t)], d);
        for (int64_t i = 0; i < d; ++i) w.out[row * d + i] = static_cast<float>(Bf16(static_cast<float>(w.out[row * d + i])));
        const double delta = dot(&w.out[row * d], &w.d_out[row * d], d);
        for (int64_t t = 0; t <= token; ++t) {
            const double of_key = p[static_cast<size_t>(t)] / sum,
                         ds = c.scale() * of_key * (dot(&w.d_out[row * d], &w.v[key(t)], d) - delta);
            add(&w.d_q[row * d], ds, &w.k[key(t)], d);
            add(&w.d_k[key(t)], ds, &w.q[row * d], d);
            add(&w.d_v[key(t)], of_key, &w.d_out[row * d], d);
        }
    }
    return w;
}

// Of each sequence the tokens at these positions; `width` elements a token.
Numbers take(const ContextCase& c, const Numbers& whole, int64_t width, const std::vector<int64_t>& positions) {
    Numbers out;
    for (int64_t b = 0; b < c.batch; ++b) {
        for (const int64_t p : positions) {
            const auto first = whole.begin() + (b * c.seq() + p) * width;
            out.insert(out.end(), first, first + width);
        }
    }
    return out;
}
void add_at(const ContextCase& c, Numbers& whole, int64_t width, const std::vector<int64_t>& positions, const Numbers& part) {
    const double* from = part.data();
    for (int64_t b = 0; b < c.batch; ++b) {
        for (const int64_t p : positions) {
            add(&whole[static_cast<size_t>((b * c.seq() + p) * width)], 1, from, width);
            from += width;
        }
    }
}
// The largest difference, over the largest value.
double error(const Numbers& got, const Numbers& want) {
    if (got.size() != want.size()) return INFINITY;
    double worst = 0, most = 1e-30;
    for (size_t i = 0; i < got.size(); ++i) {
        if (!(std::abs(got[i] - want[i]) <= worst)) worst = std::isnan(got[i]) ? INFINITY : std::abs(got[i] - want[i]);
        most = std::max(most, std::abs(want[i]));
    }
    return worst / most;
}

// A program whose one routine has one op.
ir::Program program_of(const ContextCase& c, const std::string& op, int64_t shift) {
    const bool is_backward = op.ends_with("_backward"), is_block = op.starts_with("attention_block"), carries = shift > 0;
    const std::string queries = "[batch, seq/cp, kv_heads, group, head_dim]", of_keys = c.rings ? "/cp" : "",
                      keys = fmt::format("[batch, kv_seq{}, kv_heads, head_dim]", of_keys);
    std::string text = fmt::format(
        "mesh dp_replicate=1 dp_shard=1 cp={0} tp=1 cp:(1){0}\nmicrobatches 1\n{1}arena 0\nblock b x1\n"
        "routine b.forward block b kind forward entry train chunks 1 scratch 0\n"
        "  dims batch={2} seq={3} kv_seq={3}(seq/1) kv_heads={4} group={5} head_dim={6}\n",
        c.ranks, c.head_tail ? fmt::format("head_tail {}\n", c.ranks) : "", c.batch, c.seq(), c.kv_heads, c.group, c.head_dim);
    const auto port = [&](const std::string& name, const std::string& type, const char* access) {
        text +=
            fmt::format("  port {0} {1} {2}\n    {0}: {3}\n", name, type.starts_with("i32") ? "input" : "value", access, type);
    };
    if (is_backward) port("dy", "bf16" + queries, "read");
    port("q", "bf16" + queries, "read"), port("k", "bf16" + keys, "read"), port("v", "bf16" + keys, "read");
    port("pos", "i32[batch, seq/cp]", "read"), port("kv_pos", fmt::format("i32[batch, kv_seq{}]", of_keys), "read");
    port("doc", "i32[batch, seq/cp]", "read"), port("kv_doc", fmt::format("i32[batch, kv_seq{}]", of_keys), "read");
    const char* const goes_on = carries ? "update" : "write";
    const std::string lse = "f32[batch, seq/cp, kv_heads, group]";
    if (is_backward) {
        port("out", "bf16" + queries, "read"), port("lse", lse, "read");
        port("dq", "f32" + queries, goes_on), port("dk", "f32" + keys, "write"), port("dv", "f32" + keys, "write");
    } else {
        port("out", (is_block ? "f32" : "bf16") + queries, goes_on), port("lse", lse, goes_on);
    }
    text += fmt::format("  {} = {}({}q, k, v, pos, kv_pos, doc, kv_doc{}) {{{}{}one_document=1, scale={}, window=0}}{}\n",
                        is_backward ? "dq; dk; dv" : "out; lse", op, is_backward ? "dy, " : "",
                        is_backward ? (carries ? ", out, lse, dq" : ", out, lse") : (carries ? ", out, lse" : ""),
                        c.head_tail ? fmt::format("head_tail={}, ", c.ranks) : "",
                        is_block ? fmt::format("hops={}, shift={}, ", c.rings ? c.ranks : 1, shift) : "", c.scale(),
                        c.rings ? " over cp" : "");
    ir::Program p = ir::parse(text);
    ops::renumber(p.routines.at(0));
    return p;
}

class ContextAttentionDevice : public OnNamedDevice<::testing::TestWithParam<ContextCase>> {
protected:
    void SetUp() override {
        OnNamedDevice::SetUp();
        if (IsSkipped() || HasFatalFailure()) return;
        const bool has_cudnn = plugins::gpu_module().description.find(", cuDNN") != std::string::npos;
        if (GetParam().is_by_cudnn && !has_cudnn) GTEST_SKIP() << "there is no cuDNN";
    }

    // The results of one op on a rank, by name. `carried`: what it goes on with.
    using Results = std::map<std::string, Numbers>;
    Results run(const std::string& op, int64_t rank, int64_t shift, const Results& carried) const {
        const ContextCase& c = GetParam();
        ir::Program p = program_of(c, op, shift);
        ir::Routine& r = p.routines.at(0);
        ops::KernelCatalog catalog = plugins::gpu_catalog();
        std::erase_if(catalog.entries,
                      [&](const ops::KernelEntry& e) { return !c.is_by_cudnn && e.kernel.starts_with("cudnn."); });
        passes::select_kernels(p.mesh, r, catalog);
        EXPECT_EQ(r.ops.at(0).kernel, (c.is_by_cudnn ? "cudnn." : "gpu.") + op);
        DeviceInterpreter device(*arena_, p.mesh, r, rank);
        const std::vector<int64_t> queries = c.positions(rank),
                                   keys = c.rings ? c.positions((rank - shift + c.ranks) % c.ranks) : c.positions(0, c.seq());
        const auto set_tokens = [&](const std::string& tensor, const std::vector<int64_t>& positions, bool is_document) {
            Numbers values;
            for (int64_t b = 0; b < c.batch; ++b) {
                for (const int64_t p : positions) values.push_back(is_document ? 0 : static_cast<double>(p));
            }
            device.set(tensor, values);
        };
        const int64_t of_queries = c.heads() * c.head_dim, of_keys = c.kv_heads * c.head_dim;
        device.set("q", take(c, whole_.q, of_queries, queries));
        device.set("k", take(c, whole_.k, of_keys, keys)), device.set("v", take(c, whole_.v, of_keys, keys));
        set_tokens("pos", queries, false), set_tokens("doc", queries, true);
        set_tokens("kv_pos", keys, false), set_tokens("kv_doc", keys, true);
        if (device.has("dy")) {
            device.set("dy", take(c, whole_.d_out, of_queries, queries));
            device.set("out", take(c, whole_.out, of_queries, queries)),
                device.set("lse", take(c, whole_.lse, c.heads(), queries));
        }
        for (const auto& [name, values] : carried) device.set(name, values);
        device.run(true);
        Results results;
        for (const ir::TensorId t : r.ops.at(0).out) {
            const std::string& name = r.tensors[static_cast<size_t>(t)].name;
            results[name] = device.get(name);
        }
        return results;
    }

    WholeAttention whole_ = whole_attention(GetParam());
};

TEST_P(ContextAttentionDevice, OfAllRanksIsThatOfTheWholeSequence) {
    const ContextCase& c = GetParam();
    const int64_t of_queries = c.heads() * c.head_dim, of_keys = c.kv_heads * c.head_dim, hops = c.rings ? c.ranks : 1;
    Numbers d_k(whole_.k.size()), d_v(whole_.v.size());
    for (int64_t rank = 0; rank < c.ranks; ++rank) {
        const std::vector<int64_t> queries = c.positions(rank);
        Results forward, backward;
        for (int64_t shift = 0; shift < hops; ++shift) {
            forward = run(c.rings ? "attention_block" : "attention", rank, shift, forward);
            const Results carried = shift > 0 ? Results{{"dq", backward.at("dq")}} : Results{};
            backward = run("attention_block_backward", rank, shift, carried);
            const std::vector<int64_t> keys = c.rings ? c.positions((rank - shift + c.ranks) % c.ranks) : c.positions(0, c.seq());
            add_at(c, d_k, of_keys, keys, backward.at("dk")), add_at(c, d_v, of_keys, keys, backward.at("dv"));
        }
        EXPECT_LE(error(forward.at("out"), take(c, whole_.out, of_queries, queries)), 0x1p-7) << "rank " << rank;
        EXPECT_LE(error(forward.at("lse"), take(c, whole_.lse, c.heads(), queries)), 1e-4) << "rank " << rank;
        EXPECT_LE(error(backward.at("dq"), take(c, whole_.d_q, of_queries, queries)), 0x1p-6) << "rank " << rank;
    }
    EXPECT_LE(error(d_k, whole_.d_k), 0x1p-6);
    EXPECT_LE(error(d_v, whole_.d_v), 0x1p-6);
}

std::vector<ContextCase> context_cases() {
    std::vector<ContextCase> all;
    for (const bool is_by_cudnn : {true, false}) {
        const std::string by = is_by_cudnn ? "cudnn_" : "own_";
        for (const bool head_tail : {true, false}) {
            const std::string order = head_tail ? "_head_tail" : "_plain";
            ContextCase c{by + "ring" + order, true, head_tail};
            c.is_by_cudnn = is_by_cudnn;
            all.push_back(c);
            c.name = by + "gather" + order, c.rings = false;
            all.push_back(c);
        }
    }
    // Long enough for parts of some rows, if cuDNN asks for much workspace.
    ContextCase c{"cudnn_ring_of_two", true, true, 2, 1024, 1, 2, 1, 8};
    all.push_back(c);
    c = {"cudnn_gather_of_two", false, false, 2, 512, 2, 1, 1, 8};
    all.push_back(c);
    return all;
}
INSTANTIATE_TEST_SUITE_P(Forms, ContextAttentionDevice, ::testing::ValuesIn(context_cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lockstep::testing
