#include "passes/pack_products.h"

#include <gtest/gtest.h>

#include <map>

#include "check/check.h"
#include "ir/text.h"
#include "ops/verify.h"
#include "tests/compile/recipes.h"
#include "tests/passes/program_text.h"

namespace lockstep::testing {
namespace {

using Strings = std::vector<std::string>;

constexpr const char* kModel =
    "mesh dp_replicate=1 dp_shard=1 cp=1 tp=1\nmicrobatches 1\nblock b x1\n"
    "param w: f32[ffn=12, hidden=8]? block b name w decay 1 init normal 0.02 0\n"
    "param u: f32[ffn=12, hidden=8]? block b name u decay 1 init normal 0.02 0\n"
    "routine b.forward block b kind forward entry train chunks 1 scratch 0\n  dims batch=1 seq=4 hidden=8 ffn=12\n"
    "  port x value read\n    x: f32[batch, seq, hidden]?\n"
    "  port params params read\n    w: f32[ffn, hidden]? from w\n    u: f32[ffn, hidden]? from u\n"
    "  port y value write\n    y: f32[batch, seq, ffn]?\n";

Strings ops_with(const std::string& ops, const std::string& model = kModel) {
    return op_lines(passes::pack_products(ir::parse(model + ops), {}), "b.forward");
}
std::string replaced_everywhere(std::string text, const std::string& from, const std::string& to) {
    for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
        text.replace(at, from.size(), to);
    return text;
}

const std::string kGate = "  gate: f32[batch, seq, ffn]? = einsum(x, w)\n", kUp = "  up: f32[batch, seq, ffn]? = einsum(x, u)\n",
                  kAct = "  y = swiglu(gate, up)\n";

TEST(PackProducts, GateAndUpAreOneProduct) {
    EXPECT_EQ(ops_with(kGate + kUp + kAct),
              (Strings{"gate_up: f32[batch, seq, gate_up, ffn]? = einsum(x, w.u)", "y = swiglu(gate_up)"}));
    const ir::Program p = passes::pack_products(ir::parse(kModel + kGate + kUp + kAct), {});
    EXPECT_EQ(type_of(p, "b.forward", "w.u"), "f32[gate_up, ffn, hidden]?");
    EXPECT_EQ(p.params.size(), 2u);
    EXPECT_EQ(ir::parse(ir::print(p)), p);
    EXPECT_FALSE(ops::verify(p));
}

TEST(PackProducts, WhatIsReadElsewhereOrStandsOtherwiseStaysApart) {
    const auto stays = [](const std::string& ops, const std::string& model = kModel) {
        const ir::Program before = ir::parse(model + ops);
        return passes::pack_products(before, {}) == before;
    };
    EXPECT_FALSE(stays(kGate + kUp + kAct));
    EXPECT_TRUE(stays(kGate + kUp + "  y = einsum(gate, up)\n")) << "no swiglu";
    EXPECT_TRUE(stays(kGate + kUp + "  z: f32[batch, seq, ffn]? = swiglu(gate, up)\n  y = einsum(z, gate)\n")) << "gate is read";
    EXPECT_TRUE(
        stays("  x2: f32[batch, seq, hidden]? = scale(x) {c=2.0}\n" + kGate + replaced_everywhere(kUp, "(x", "(x2") + kAct))
        << "other rows";
    EXPECT_TRUE(stays(kGate + replaced_everywhere(kUp, "u)", "w)") + kAct)) << "one weight";
    EXPECT_TRUE(stays(replaced_everywhere(kGate, "w)", "u)") + replaced_everywhere(kUp, "u)", "w)") + kAct)) << "up stands first";
    EXPECT_TRUE(stays(kGate + kUp + kAct, replaced_everywhere(kModel, "name u decay 1", "name u decay 0"))) << "other treatment";
    const std::string between = "param n: f32[hidden=8]? block b name n decay 0 init ones 0.0 0\nparam u:";
    EXPECT_FALSE(stays(kGate + kUp + kAct, replaced_everywhere(kModel, "param u:", between)))
        << "what does not decay stands elsewhere";
    EXPECT_TRUE(
        stays(kGate + kUp + kAct, replaced_everywhere(kModel, "param u:", replaced_everywhere(between, "decay 0", "decay 1"))));
}

std::string attention_model(bool biases) {
    const auto param = [](const std::string& key, const std::string& dims, int decay) {
        return "param " + key + ": f32[" + dims + "]? block b name " + key + " decay " + std::to_string(decay) +
               " init normal 0.02 0\n";
    };
    const std::string sizes[] = {"kv_heads=2, group=3, head_dim=4", "kv_heads=2, head_dim=4", "kv_heads=2, head_dim=4"};
    const std::string dims[] = {"kv_heads, group, head_dim", "kv_heads, head_dim", "kv_heads, head_dim"};
    std::string params, tensors;
    for (int i = 0; i < 3; ++i) {
        const std::string key(1, "qkv"[i]);
        params += param("w" + key, sizes[i] + ", hidden=8", 1);
        tensors += "    w" + key + ": f32[" + dims[i] + ", hidden]? from w" + key + "\n";
        if (!biases) continue;
        params += param("b" + key, sizes[i], 0);
        tensors += "    b" + key + ": f32[" + dims[i] + "]? from b" + key + "\n";
    }
    return "mesh dp_replicate=1 dp_shard=1 cp=1 tp=1\nmicrobatches 1\nblock b x1\n" + params +
           "routine b.forward block b kind forward entry train chunks 1 scratch 0\n"
           "  dims batch=1 seq=4 hidden=8 kv_heads=2 group=3 head_dim=4\n"
           "  port x value read\n    x: f32[batch, seq, hidden]?\n  port params params read\n" +
           tensors +
           "  port q value write\n    q2: f32[batch, seq, kv_heads, group, head_dim]?\n"
           "  port k value write\n    k2: f32[batch, seq, kv_heads, head_dim]?\n"
           "  port v value write\n    v2: f32[batch, seq, kv_heads, head_dim]?\n"
           "  port pos input read\n    pos: i32[batch, seq]? from pos\n";
}
const std::string kHeads = "f32[batch, seq, kv_heads, head_dim]?", kQueries = "f32[batch, seq, kv_heads, group, head_dim]?";
const std::string kWaves =
    " {factor=1.0, high_freq_factor=4.0, low_freq_factor=1.0, original_positions=8192.0, sign=1, theta=10000.0}";
const std::string kQuery = "  q: " + kQueries + " = einsum(x, wq)\n", kKey = "  k: " + kHeads + " = einsum(x, wk)\n",
                  kValue = "  v: " + kHeads + " = einsum(x, wv)\n", kEnd = "  v2 = scale(v) {c=2.0}\n";
const std::string kRotated = "  q2 = rope(q, pos)" + kWaves + "\n  k2 = rope(k, pos)" + kWaves + "\n";
const std::string kScaled = "  q2 = scale(q) {c=3.0}\n  k2 = scale(k) {c=3.0}\n";

TEST(PackProducts, QueriesKeysAndValuesAreOneProduct) {
    const std::string model = attention_model(false),
                      packed = "qkv: f32[batch, seq, qkv, kv_heads, head_dim]? = einsum(x, wq.wk.wv)";
    EXPECT_EQ(ops_with(kQuery + kKey + kValue + kRotated + kEnd, model),
              (Strings{packed, "q2; k2; v: " + kHeads + " = split_qkv(qkv, pos)" + kWaves, "v2 = scale(v) {c=2.0}"}));
    EXPECT_EQ(ops_with(kQuery + kKey + kValue + kScaled + kEnd, model)[1],
              "q: " + kQueries + "; k: " + kHeads + "; v: " + kHeads + " = split_qkv(qkv)")
        << "what comes between them and the rotation reads them apart";
    const ir::Program p = passes::pack_products(ir::parse(model + kQuery + kKey + kValue + kRotated + kEnd), {});
    EXPECT_EQ(type_of(p, "b.forward", "wq.wk.wv"), "f32[qkv, kv_heads, head_dim, hidden]?");
    const ir::Routine& r = *p.routine("b.forward");
    EXPECT_EQ(r.dims[static_cast<size_t>(r.dim(ir::DimRole::Qkv))].size, 5);
    EXPECT_EQ(p.params.size(), 3u);
    EXPECT_EQ(ir::parse(ir::print(p)), p);
    EXPECT_FALSE(ops::verify(p));
}

TEST(PackProducts, BiasesOfQueriesKeysAndValuesAreOne) {
    const auto biased = [](const std::string& product, const std::string& key, const std::string& dims) {
        return replaced_everywhere(product, "  " + key + ":", "  " + key + "_product:") + "  " + key + ": " + dims + " = bias(" +
               key + "_product, b" + key + ")\n";
    };
    const std::string all =
        biased(kQuery, "q", kQueries) + biased(kKey, "k", kHeads) + biased(kValue, "v", kHeads) + kRotated + kEnd;
    const ir::Program p = passes::pack_products(ir::parse(attention_model(true) + all), {});
    EXPECT_EQ(op_lines(p, "b.forward")[1], "qkv: f32[batch, seq, qkv, kv_heads, head_dim]? = bias(qkv_product, bq.bk.bv)");
    EXPECT_EQ(type_of(p, "b.forward", "bq.bk.bv"), "f32[qkv, kv_heads, head_dim]?");
    EXPECT_EQ(op_lines(p, "b.forward").size(), 4u);
    EXPECT_FALSE(ops::verify(p));
}

TEST(PackProducts, QueriesKeysAndValuesThatCannotBeOneStayApart) {
    const auto stays = [](const std::string& ops, passes::PackProductsOptions options = {}) {
        const ir::Program before = ir::parse(attention_model(false) + ops);
        return passes::pack_products(before, options) == before;
    };
    const std::string end = kRotated + kEnd, scale = "  x2: f32[batch, seq, hidden]? = scale(x) {c=2.0}\n";
    EXPECT_FALSE(stays(kQuery + kKey + kValue + end));
    EXPECT_TRUE(stays(kQuery + kKey + kValue + end, {.queries_keys_values = false})) << "groups are cut";
    EXPECT_TRUE(stays(scale + kQuery + kKey + replaced_everywhere(kValue, "(x", "(x2") + end)) << "other rows";
    EXPECT_TRUE(stays(kQuery + kKey + "  v: " + kHeads + " = einsum(x, wv, x)\n" + end)) << "no product";
    EXPECT_TRUE(stays(kQuery + kKey + kValue + "  z: " + kHeads + " = einsum(x, wv)\n" + kRotated + "  v2 = add(v, z)\n"))
        << "a weight is read twice";
}

// Weights [hidden, ..] side by side hold no rows of one matrix.
TEST(PackProducts, Gpt2StaysAsItIs) {
    EXPECT_EQ(program_after("pack_products", {{"model.name", "gpt2"}}), program_after("build_blocks", {{"model.name", "gpt2"}}));
}

// Two key heads on four ranks: each rank has whole keys and half of their queries.
TEST(PackProducts, GroupsThatTensorParallelismCutsStayApart) {
    const auto packs = [](const char* tp) {
        const Settings settings = {{"parallelism.tensor_parallel_degree", tp}};
        return !op_line(program_after("pack_products", settings), "layer.forward", "qkv").empty();
    };
    EXPECT_TRUE(packs("1"));
    EXPECT_TRUE(packs("2"));
    EXPECT_FALSE(packs("4"));
}

TEST(PackProducts, BackwardHasNoSumOfTheirGradients) {
    const auto sums = [](const Settings& settings) {
        const ir::Routine r = *program_after("differentiate", settings).routine("layer.backward");
        return std::count_if(r.ops.begin(), r.ops.end(), [](const ir::Op& op) { return op.kind == "add"; });
    };
    const ir::Program p = program_after("differentiate");
    EXPECT_EQ(op_line(p, "layer.backward", "d.n2.part"), "d.n2.part: f32[batch, seq, hidden]? = einsum(d.gate_up.part, w1.w3)");
    EXPECT_EQ(op_line(p, "layer.backward", "grad.w1.w3"), "+grad.w1.w3 = accumulate(d.w1.w3.part)");
    EXPECT_EQ(op_line(p, "layer.backward", "d.n1.part"), "d.n1.part: f32[batch, seq, hidden]? = einsum(d.qkv.part, wq.wk.wv)");
    EXPECT_EQ(op_line(p, "layer.backward", "grad.wq.wk.wv"), "+grad.wq.wk.wv = accumulate(d.wq.wk.wv.part)");
    EXPECT_EQ(sums({{"training.pack_products", "false"}}), sums({}) + 2);
}

// The local parts of weights that are one follow each other, whatever their size: no cache line is between them.
TEST(PackProducts, TheirWeightsFollowEachOther) {
    const std::map<std::string, std::string> behind = {{"w3", "w1"}, {"wk", "wq"}, {"wv", "wk"}, {"bk", "bq"}, {"bv", "bk"}};
    for (const char* tp : {"1", "2"}) {
        const ir::Program p = program_after("partition_parameters", {{"parallelism.tensor_parallel_degree", tp},
                                                                     {"model.ffn_dim", "6"},
                                                                     {"model.head_dim", "2"},
                                                                     {"model.dim", "6"},
                                                                     {"model.qkv_bias", "1"}});
        size_t found = 0;
        for (const ir::Unit& u : p.units) {
            for (const ir::Segment& s : u.segments) {
                for (size_t i = 1; i < s.members.size(); ++i) {
                    if (!behind.contains(s.members[i].param)) continue;
                    EXPECT_EQ(s.members[i - 1].param, behind.at(s.members[i].param));
                    EXPECT_EQ(s.members[i].begin, s.members[i - 1].begin + s.members[i - 1].count);
                    ++found;
                }
            }
        }
        EXPECT_EQ(found, behind.size());
    }
}

TEST(PackProducts, CheckRefusesWeightsThatDoNotFollowEachOther) {
    const ir::Program sound = program_after("plan_memory");
    EXPECT_FALSE(check::prove({&sound}));
    const std::pair<const char*, const char*> cases[] = {{"w1+w3", "w3+w1"},    {"w1+w3", "w1+w2"},    {"w1+w3", "w1+w1"},
                                                         {"w1+w3", "w1"},       {"w1+w3", "wo+w3"},    {"wq+wk+wv", "wq+wv+wk"},
                                                         {"wq+wk+wv", "wq+wk"}, {"wq+wk+wv", "wk+wv"}, {"wq+wk+wv", "wq+wk+wo"}};
    for (const auto& [from, to] : cases) {
        ir::Program p = sound;
        for (ir::Routine& r : p.routines) {
            for (ir::Tensor& t : r.tensors) {
                if (t.source == from) t.source = to;
            }
        }
        EXPECT_TRUE(check::prove({&p})) << to;
    }
}

}  // namespace
}  // namespace lockstep::testing
