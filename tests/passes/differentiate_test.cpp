#include "passes/differentiate.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "ir/text.h"
#include "ops/builder.h"
#include "ops/verify.h"
#include "tests/passes/program_text.h"

namespace lockstep::testing {
namespace {

using Strings = std::vector<std::string>;

// One block x -> y, or one without y that ends in `loss_sum`.
ir::Program differentiated(const std::string& ports, const std::string& ops) {
    ir::Program p = ir::parse(
        "mesh dp_replicate=1 dp_shard=1 cp=1 tp=1\nblock b x1\n"
        "state loss_sum role loss_sum scope step f64 init 0.0\nstate inv_n role inverse_count scope step f32 init 0.0\n"
        "routine b.forward block b kind forward entry train chunks 1 scratch 0\n"
        "  dims batch=2 seq=3 kv_seq=3 hidden=4 ffn=5 kv_heads=1 head_dim=2\n"
        "  port ids input read\n    ids: i32[batch, seq]? from ids\n" +
        ports + ops);
    p = passes::differentiate(std::move(p));
    for (ir::Routine& r : p.routines) ops::renumber(r);
    const auto violation = ops::verify(p);
    EXPECT_FALSE(violation) << violation->message;
    return p;
}

const std::string kIn = "  port x value read\n    x: f32[batch, seq, hidden]?\n",
                  kOut = "  port y value write\n    y: f32[batch, seq, hidden]?\n";
std::string params(const std::string& tensors) { return "  port params params read\n" + tensors; }

Strings frame_of(const ir::Program& p, const std::string& routine) {
    Strings out;
    const ir::Routine& r = *p.routine(routine);
    if (const int port = r.port("frame"); port >= 0) {
        for (ir::TensorId t : r.port_tensors(port)) out.push_back(r.tensors[t].name);
    }
    return out;
}

TEST(Differentiate, ProductNeedsNoFrame) {
    const ir::Program p = differentiated(kIn + params("    w: f32[hidden]? from w\n") + kOut, "  y = einsum(x, w)\n");
    EXPECT_EQ(op_lines(p, "b.backward"),
              (Strings{"d.x = einsum(d.y, w)", "d.w.part: f32[hidden]? = einsum(d.y, x)", "+grad.w = accumulate(d.w.part)"}));
    EXPECT_EQ(frame_of(p, "b.forward"), Strings{});
    EXPECT_EQ(op_lines(p, "b.forward"), (Strings{"y = einsum(x, w)"}));
}

TEST(Differentiate, WhatBackwardReadsIsSaved) {
    const ir::Program p = differentiated(
        kIn + params("    w: f32[ffn, hidden]? from w\n    v: f32[hidden, ffn]? from v\n") + kOut,
        "  h: f32[batch, seq, ffn]? = einsum(x, w)\n  a: f32[batch, seq, ffn]? = unary(h) {fn='silu'}\n  y = einsum(a, v)\n");
    EXPECT_EQ(frame_of(p, "b.forward"), (Strings{"h", "a"}));
    EXPECT_EQ(frame_of(p, "b.backward"), (Strings{"h", "a"}));
    EXPECT_EQ(op_line(p, "b.backward", "d.h.part"), "d.h.part: f32[batch, seq, ffn]? = einsum(d.a.part, h.silu_slope)");
}

TEST(Differentiate, RerunOpsAreNotSaved) {
    const std::string ports =
        kIn + params("    w: f32[ffn, hidden]? from w\n    b: f32[ffn]? from b\n    v: f32[hidden, ffn]? from v\n") + kOut;
    const ir::Program p = differentiated(ports,
                                         "  h: f32[batch, seq, ffn]? = einsum(x, w)\n"
                                         "  act: f32[batch, seq, ffn]? = bias_gelu(h, b) {fn='gelu'}\n  y = einsum(act, v)\n");
    EXPECT_EQ(frame_of(p, "b.forward"), (Strings{"h"}));
    EXPECT_EQ(op_lines(p, "b.backward")[0], "act: f32[batch, seq, ffn]? = bias_gelu(h, b) {fn='gelu'}");
}

TEST(Differentiate, WhatFollowsFromInputsAloneIsMadeAgain) {
    const ir::Program p =
        differentiated(kIn + kOut, "  valid: f32[batch, seq]? = unary(ids) {fn='valid'}\n  y = einsum(x, valid)\n");
    EXPECT_EQ(frame_of(p, "b.forward"), Strings{});
    EXPECT_EQ(op_lines(p, "b.backward"),
              (Strings{"valid: f32[batch, seq]? = unary(ids) {fn='valid'}", "d.x = einsum(d.y, valid)"}));
}

TEST(Differentiate, ContributionsMeetInOneAdd) {
    const ir::Program p = differentiated(
        kIn + params("    w: f32[hidden]? from w\n") + kOut,
        "  a: f32[batch, seq, hidden]? = einsum(x, w)\n  b: f32[batch, seq, hidden]? = scale(x) {c=2.0}\n  y = add(a, b, x)\n");
    EXPECT_EQ(op_line(p, "b.backward", "d.x"), "d.x = add(d.y, d.x.part, d.x.part.2)");
}

TEST(Differentiate, ASquareCountsTwice) {
    const ir::Program p = differentiated(kIn + kOut, "  y = einsum(x, x)\n");
    EXPECT_EQ(op_line(p, "b.backward", "d.x"), "d.x = add(d.x.part, d.x.part)");
}

TEST(Differentiate, ATwiceUsedParameterHasOneGradient) {
    const ir::Program p = differentiated(kIn + params("    w: f32[hidden]? from w\n") + kOut,
                                         "  a: f32[batch, seq, hidden]? = einsum(x, w)\n  y = einsum(a, w)\n");
    EXPECT_EQ(op_line(p, "b.backward", "grad.w"), "+grad.w = accumulate(d.w)");
    EXPECT_EQ(op_line(p, "b.backward", "d.w"), "d.w: f32[hidden]? = add(d.w.part, d.w.part.2)");
}

TEST(Differentiate, IntegersHaveNoCotangent) {
    const ir::Program p =
        differentiated(params("    table: f32[ffn, hidden]? from table\n") + kOut, "  y = gather(table, ids)\n");
    EXPECT_EQ(op_lines(p, "b.backward"),
              (Strings{"d.table.part: f32[ffn, hidden]? = scatter(d.y, ids)", "+grad.table = accumulate(d.table.part)"}));
}

TEST(Differentiate, TheLossStartsFromTheInverseCount) {
    const ir::Program p = differentiated(
        kIn + params("    w: f32[hidden]? from w\n") + "  port loss_sum state accumulate of loss_sum\n    loss_sum: f64[]?\n",
        "  loss: f32[]? = einsum(x, w)\n  +loss_sum = accumulate(loss)\n");
    EXPECT_EQ(op_line(p, "b.backward", "d.w.part"), "d.w.part: f32[hidden]? = einsum(inv_n, x)");
    EXPECT_EQ(op_line(p, "b.backward", "loss_sum"), "");
}

TEST(Differentiate, AParameterWithoutUseIsAnError) {
    EXPECT_THROW(differentiated(kIn + params("    w: f32[hidden]? from w\n") + kOut, "  y = scale(x) {c=1.0}\n"), InternalError);
}

TEST(Differentiate, OtherEntriesAreLeftAlone) {
    ir::Program p = ir::parse(
        "mesh dp_replicate=1 dp_shard=1 cp=1 tp=1\nblock b x1\nroutine b.eval block b kind forward entry eval chunks 1 scratch "
        "0\n  dims batch=2\n"
        "  port x value read\n    x: f32[batch]?\n  port y value write\n    y: f32[batch]?\n  y = scale(x) {c=1.0}\n");
    EXPECT_TRUE(passes::differentiate(p) == p);
}

}  // namespace
}  // namespace lockstep::testing
