#include "passes/pack_products.h"

#include <gtest/gtest.h>

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
    return op_lines(passes::pack_products(ir::parse(model + ops)), "b.forward");
}
std::string replaced(std::string text, const std::string& from, const std::string& to) {
    for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
        text.replace(at, from.size(), to);
    return text;
}

const std::string kGate = "  gate: f32[batch, seq, ffn]? = einsum(x, w)\n", kUp = "  up: f32[batch, seq, ffn]? = einsum(x, u)\n",
                  kAct = "  y = swiglu(gate, up)\n";

TEST(PackProducts, GateAndUpAreOneProduct) {
    EXPECT_EQ(ops_with(kGate + kUp + kAct),
              (Strings{"gate_up: f32[batch, seq, gate_up, ffn]? = einsum(x, w.u)", "y = swiglu(gate_up)"}));
    const ir::Program p = passes::pack_products(ir::parse(kModel + kGate + kUp + kAct));
    EXPECT_EQ(type_of(p, "b.forward", "w.u"), "f32[gate_up, ffn, hidden]?");
    EXPECT_EQ(p.params.size(), 2u);
    EXPECT_EQ(ir::parse(ir::print(p)), p);
    EXPECT_FALSE(ops::verify(p));
}

TEST(PackProducts, WhatIsReadElsewhereOrStandsOtherwiseStaysApart) {
    const auto stays = [](const std::string& ops, const std::string& model = kModel) {
        const ir::Program before = ir::parse(model + ops);
        return passes::pack_products(before) == before;
    };
    EXPECT_FALSE(stays(kGate + kUp + kAct));
    EXPECT_TRUE(stays(kGate + kUp + "  y = einsum(gate, up)\n")) << "no swiglu";
    EXPECT_TRUE(stays(kGate + kUp + "  z: f32[batch, seq, ffn]? = swiglu(gate, up)\n  y = einsum(z, gate)\n")) << "gate is read";
    EXPECT_TRUE(stays("  x2: f32[batch, seq, hidden]? = scale(x) {c=2.0}\n" + kGate + replaced(kUp, "(x", "(x2") + kAct))
        << "other rows";
    EXPECT_TRUE(stays(kGate + replaced(kUp, "u)", "w)") + kAct)) << "one weight";
    EXPECT_TRUE(stays(replaced(kGate, "w)", "u)") + replaced(kUp, "u)", "w)") + kAct)) << "up stands first";
    EXPECT_TRUE(stays(kGate + kUp + kAct, replaced(kModel, "name u decay 1", "name u decay 0"))) << "other treatment";
}

TEST(PackProducts, BackwardHasNoSumOfTheirGradients) {
    const auto sums = [](const Settings& settings) {
        const ir::Routine r = *program_after("differentiate", settings).routine("layer.backward");
        return std::count_if(r.ops.begin(), r.ops.end(), [](const ir::Op& op) { return op.kind == "add"; });
    };
    const ir::Program p = program_after("differentiate");
    EXPECT_EQ(op_line(p, "layer.backward", "d.n2.part"), "d.n2.part: f32[batch, seq, hidden]? = einsum(d.gate_up.part, w1.w3)");
    EXPECT_EQ(op_line(p, "layer.backward", "grad.w1.w3"), "+grad.w1.w3 = accumulate(d.w1.w3.part)");
    EXPECT_EQ(sums({{"training.pack_products", "false"}}), sums({}) + 1);
}

// The local parts of two weights follow each other, whatever their size: no cache line is between them.
TEST(PackProducts, TheirWeightsFollowEachOther) {
    for (const char* tp : {"1", "2"}) {
        const ir::Program p =
            program_after("partition_parameters", {{"parallelism.tensor_parallel_degree", tp}, {"model.ffn_dim", "6"}});
        int found = 0;
        for (const ir::Unit& u : p.units) {
            for (const ir::Segment& s : u.segments) {
                for (size_t i = 1; i < s.members.size(); ++i) {
                    if (s.members[i].param != "w3") continue;
                    EXPECT_EQ(s.members[i - 1].param, "w1");
                    EXPECT_EQ(s.members[i].begin, s.members[i - 1].begin + s.members[i - 1].count);
                    ++found;
                }
            }
        }
        EXPECT_EQ(found, 1);
    }
}

TEST(PackProducts, CheckRefusesWeightsThatDoNotFollowEachOther) {
    const ir::Program sound = program_after("plan_memory");
    EXPECT_FALSE(check::prove({&sound}));
    for (const char* source : {"w3+w1", "w1+w2", "w1+w1", "w1", "wo+w3"}) {
        ir::Program p = sound;
        for (ir::Routine& r : p.routines) {
            for (ir::Tensor& t : r.tensors) {
                if (t.source == "w1+w3") t.source = source;
            }
        }
        EXPECT_TRUE(check::prove({&p})) << source;
    }
}

}  // namespace
}  // namespace lockstep::testing
