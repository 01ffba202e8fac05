#include "passes/shard.h"

#include <gtest/gtest.h>

#include "ir/text.h"
#include "ops/builder.h"
#include "ops/verify.h"
#include "tests/compile/recipes.h"
#include "tests/passes/program_text.h"

namespace lockstep::testing {
namespace {

using Strings = std::vector<std::string>;

enum class Sequence { Split, Whole };

// One block on tp 2 x dp_shard 2.
ir::Program sharded(const std::string& body, Sequence sequence = Sequence::Split) {
    ir::Program p = ir::parse(
        "mesh dp_replicate=1 dp_shard=2 cp=1 tp=2 dp_shard:(1)2 tp:(1)2\nblock b x1\n"
        "routine b.forward block b kind forward entry train chunks 1 scratch 0\n  dims batch=2 seq=4 kv_seq=4 hidden=8 ffn=6 "
        "vocab=10 kv_heads=2 head_dim=4 batch.g=2(batch/1) seq.g=1(seq/4) "
        "hidden.b=4(hidden/2) ffn.b=2(ffn/3) seq.b=2(seq/2)\n" +
        body);
    p = passes::shard(std::move(p), {sequence == Sequence::Split});
    for (ir::Routine& r : p.routines) ops::renumber(r);
    const auto violation = ops::verify(p);
    EXPECT_FALSE(violation) << violation->message << "\n" << ir::print(p);
    return p;
}

const std::string kStream = "  port x value read\n    x: f32[batch, seq, hidden]?\n",
                  kResult = "  port y value write\n    y: f32[batch, seq, hidden]?\n",
                  kTwoProducts = "  port params params read\n    w: f32[ffn, hidden]? from w\n    v: f32[hidden, ffn]? from v\n",
                  kIds = "  port ids input read\n    ids: i32[batch, seq]? from ids\n";

TEST(Shard, ResidualIsReducedBeforeTheAdd) {
    const std::string body =
        kStream + kTwoProducts + kResult +
        "  h: f32[batch, seq, ffn]? = einsum(x, w)\n  o: f32[batch, seq, hidden]? = einsum(h, v)\n  y = add(x, o)\n";
    const ir::Program split = sharded(body), whole = sharded(body, Sequence::Whole);
    EXPECT_EQ(op_lines(split, "b.forward"),
              (Strings{"x.ag: f32[batch/dp_shard, seq, hidden] = all_gather(x) {dim=1} over tp",
                       "h: f32[batch/dp_shard, seq, ffn/tp] = einsum(x.ag, w)",
                       "o: f32[batch/dp_shard, seq, hidden] partial sum tp = einsum(h, v)",
                       "o.rs: f32[batch/dp_shard, seq/tp, hidden] = reduce_scatter(o) {dim=1} over tp", "y = add(x, o.rs)"}));
    EXPECT_EQ(op_lines(whole, "b.forward"),
              (Strings{"h: f32[batch/dp_shard, seq, ffn/tp] = einsum(x, w)",
                       "o: f32[batch/dp_shard, seq, hidden] partial sum tp = einsum(h, v)",
                       "o.ar: f32[batch/dp_shard, seq, hidden] = all_reduce(o) over tp", "y = add(x, o.ar)"}));
}

TEST(Shard, EqualPartialTermsAreSummedBeforeOneReduction) {
    const std::string body = kStream + kTwoProducts + kResult +
                             "  h: f32[batch, seq, ffn]? = einsum(x, w)\n  g: f32[batch, seq, ffn]? = unary(h) {fn='silu'}\n  o: "
                             "f32[batch, seq, hidden]? = einsum(h, v)\n"
                             "  p: f32[batch, seq, hidden]? = einsum(g, v)\n  y = add(o, x, p)\n";
    const ir::Program p = sharded(body);
    EXPECT_EQ(collectives(p, "b.forward"), (Strings{"all_gather(x) over tp", "reduce_scatter(y.sum) over tp"}));
    EXPECT_EQ(op_line(p, "b.forward", "y.sum"), "y.sum: f32[batch/dp_shard, seq, hidden] partial sum tp = add(o, p)");
    EXPECT_EQ(op_line(p, "b.forward", "y").substr(0, 7), "y = add");
}

TEST(Shard, AValueIsGatheredOnce) {
    const std::string body = kStream + kTwoProducts + kResult +
                             "  h: f32[batch, seq, ffn]? = einsum(x, w)\n  g: f32[batch, seq, ffn]? = einsum(x, v)\n  a: "
                             "f32[batch, seq, ffn]? = swiglu(h, g)\n"
                             "  o: f32[batch, seq, hidden]? = einsum(a, v)\n  y = add(x, o)\n";
    EXPECT_EQ(collectives(sharded(body), "b.forward"), (Strings{"all_gather(x) over tp", "reduce_scatter(o) over tp"}));
}

// Largest sizes are reduced, not values; what crosses ranks is float8; each rank makes the scale of its groups by itself.
TEST(Shard, Float8IsMadeBeforeItIsGathered) {
    const std::string body =
        kStream + kTwoProducts + kResult +
        "  a: f32[batch.g, seq.g]? = amax(x)\n  q: f8e4m3[batch, seq, hidden]?; s: f32[batch.g, seq.g]? = to_float8(x, a)\n"
        "  b: f32[]? = amax(w)\n  p: f8e4m3[ffn, hidden]?; t: f32[]? = to_float8(w, b)\n"
        "  h: f32[batch, seq, ffn]? = scaled_einsum(q, p, s, t)\n  o: f32[batch, seq, hidden]? = einsum(h, v)\n"
        "  y = add(x, o)\n";
    EXPECT_EQ(op_lines(sharded(body), "b.forward"),
              (Strings{"a: f32[batch.g/dp_shard, seq.g] partial max tp = amax(x)",
                       "a.ar: f32[batch.g/dp_shard, seq.g] = all_reduce(a) over tp",
                       "q: f8e4m3[batch/dp_shard, seq/tp, hidden]; s: f32[batch.g/dp_shard, seq.g] = to_float8(x, a.ar)",
                       "b: f32[] partial max tp = amax(w)", "b.ar: f32[] = all_reduce(b) over tp",
                       "p: f8e4m3[ffn/tp, hidden]; t: f32[] = to_float8(w, b.ar)",
                       "q.ag: f8e4m3[batch/dp_shard, seq, hidden] = all_gather(q) {dim=1} over tp",
                       "h: f32[batch/dp_shard, seq, ffn/tp] = scaled_einsum(q.ag, p, s, t)",
                       "o: f32[batch/dp_shard, seq, hidden] partial sum tp = einsum(h, v)",
                       "o.rs: f32[batch/dp_shard, seq/tp, hidden] = reduce_scatter(o) {dim=1} over tp", "y = add(x, o.rs)"}));
}

// Codes and scales of blocks are placed as what they are made of, and no sum of them is left open.
TEST(Shard, BlocksAreWholeOnTheirRanks) {
    const std::string body =
        kStream + kTwoProducts + kResult +
        "  q: f8e4m3[batch, seq, hidden]?; s: e8m0[batch, seq, hidden.b]? = to_blocks(x) {along='hidden', block=2, "
        "rounding='floor'}\n"
        "  p: f8e4m3[ffn, hidden]?; t: e8m0[ffn, hidden.b]? = to_blocks(w) {along='hidden', block=2, rounding='floor'}\n"
        "  h: f32[batch, seq, ffn]? = scaled_einsum(q, p, s, t)\n"
        "  r: f8e4m3[batch, seq, ffn]?; c: f32[batch, seq, ffn.b]? = to_blocks(h) {along='ffn', block=3}\n"
        "  u: f8e4m3[hidden, ffn]?; d: f32[hidden, ffn.b]? = to_blocks(v) {along='ffn', block=3}\n"
        "  o: f32[batch, seq, hidden]? = scaled_einsum(r, u, c, d)\n  y = add(x, o)\n";
    EXPECT_EQ(
        op_lines(sharded(body), "b.forward"),
        (Strings{
            "q: f8e4m3[batch/dp_shard, seq/tp, hidden]; s: e8m0[batch/dp_shard, seq/tp, hidden.b] = to_blocks(x) "
            "{along='hidden', block=2, rounding='floor'}",
            "p: f8e4m3[ffn/tp, hidden]; t: e8m0[ffn/tp, hidden.b] = to_blocks(w) {along='hidden', block=2, rounding='floor'}",
            "q.ag: f8e4m3[batch/dp_shard, seq, hidden] = all_gather(q) {dim=1} over tp",
            "s.ag: e8m0[batch/dp_shard, seq, hidden.b] = all_gather(s) {dim=1} over tp",
            "h: f32[batch/dp_shard, seq, ffn/tp] = scaled_einsum(q.ag, p, s.ag, t)",
            "r: f8e4m3[batch/dp_shard, seq, ffn/tp]; c: f32[batch/dp_shard, seq, ffn.b/tp] = to_blocks(h) {along='ffn', block=3}",
            "u: f8e4m3[hidden, ffn/tp]; d: f32[hidden, ffn.b/tp] = to_blocks(v) {along='ffn', block=3}",
            "o: f32[batch/dp_shard, seq, hidden] partial sum tp = scaled_einsum(r, u, c, d)",
            "o.rs: f32[batch/dp_shard, seq/tp, hidden] = reduce_scatter(o) {dim=1} over tp", "y = add(x, o.rs)"}));
}

// Of each half of the sequence: the rank that has the tokens has their scales. A product contracts them with those of a rank.
TEST(Shard, ScalesAlongTokensAreOfTheRanksThatHaveThem) {
    const std::string body =
        kStream +
        "  port g value read\n    g: f32[batch, seq, ffn]?\n  port d gradients accumulate\n    d: f32[ffn, hidden]? from w\n" +
        "  q: f8e4m3[batch, seq, hidden]?; s: e8m0[batch, seq.b, hidden]? = to_blocks(x) {along='seq', block=2, rounding='rceil'}\n"
        "  p: f8e4m3[batch, seq, ffn]?; t: e8m0[batch, seq.b, ffn]? = to_blocks(g) {along='seq', block=2, rounding='rceil'}\n"
        "  w: f32[ffn, hidden]? = scaled_einsum(p, q, t, s)\n  +d = accumulate(w)\n";
    const ir::Program p = sharded(body);
    EXPECT_EQ(op_line(p, "b.forward", "q"),
              "q: f8e4m3[batch/dp_shard, seq/tp, hidden]; s: e8m0[batch/dp_shard, seq.b/tp, hidden] = to_blocks(x) "
              "{along='seq', block=2, rounding='rceil'}");
    EXPECT_EQ(op_line(p, "b.forward", "p"),
              "p: f8e4m3[batch/dp_shard, seq, ffn/tp]; t: e8m0[batch/dp_shard, seq.b, ffn/tp] = to_blocks(g) "
              "{along='seq', block=2, rounding='rceil'}");
    EXPECT_EQ(op_line(p, "b.forward", "s.ag"), "s.ag: e8m0[batch/dp_shard, seq.b, hidden] = all_gather(s) {dim=1} over tp");
}

TEST(Shard, InputsAreBoundInEveryPlacementAskedFor) {
    const std::string body = kIds + "  port params params read\n    table: f32[vocab, hidden]? from table\n" + kResult +
                             "  e: f32[batch, seq, hidden]? = gather(table, ids)\n  valid: f32[batch, seq]? = unary(ids) "
                             "{fn='valid'}\n  y = einsum(e, valid)\n";
    const ir::Program p = sharded(body);
    EXPECT_EQ(type_of(p, "b.forward", "ids@whole"), "i32[batch/dp_shard, seq]");
    EXPECT_EQ(type_of(p, "b.forward", "ids@tp"), "i32[batch/dp_shard, seq/tp]");
    EXPECT_EQ(op_line(p, "b.forward", "e"), "e: f32[batch/dp_shard, seq, hidden] partial sum tp = gather(table, ids@whole)");
    EXPECT_EQ(collectives(p, "b.forward"), (Strings{"reduce_scatter(e) over tp"}));
}

TEST(Shard, APartialValueIsReducedOnceForAllThatNeedItWhole) {
    const std::string body = kStream + kTwoProducts + kResult +
                             "  h: f32[batch, seq, ffn]? = einsum(x, w)\n  o: f32[batch, seq, hidden]? = einsum(h, v)\n"
                             "  s: f32[batch, seq, hidden]? = unary(o) {fn='silu'}\n  t: f32[batch, seq, hidden]? = unary(o) "
                             "{fn='dsilu'}\n  y = add(s, t)\n";
    EXPECT_EQ(collectives(sharded(body), "b.forward"), (Strings{"all_gather(x) over tp", "reduce_scatter(o) over tp"}));
}

TEST(Shard, ALinearOpPassesAPartialValueToAnAccumulator) {
    const std::string ports = kStream + "  port gradients gradients accumulate\n    grad.u: f32[hidden]? from u\n" + kTwoProducts;
    const std::string made = "  h: f32[batch, seq, ffn]? = einsum(x, w)\n  o: f32[batch, seq, hidden]? = einsum(h, v)\n";
    const ir::Program p = sharded(
        ports + made +
            "  s: f32[batch, seq, hidden]? = scale(o) {c=2.0}\n  g: f32[hidden]? = einsum(s)\n  +grad.u = accumulate(g)\n",
        Sequence::Whole);
    EXPECT_EQ(collectives(p, "b.forward"), Strings{});
    EXPECT_EQ(type_of(p, "b.forward", "s"), "f32[batch/dp_shard, seq, hidden] partial sum tp");
    EXPECT_EQ(type_of(p, "b.forward", "grad.u"), "f32[hidden] partial sum dp_shard,tp");
}

TEST(Shard, AProductOfTwoPartialValuesIsNotOneOfThem) {
    const ir::Program p = sharded(kStream + kTwoProducts +
                                  "  port gradients gradients accumulate\n    grad.u: f32[hidden]? from u\n"
                                  "  h: f32[batch, seq, ffn]? = einsum(x, w)\n  o: f32[batch, seq, hidden]? = einsum(h, v)\n"
                                  "  g: f32[hidden]? = einsum(o, o)\n  +grad.u = accumulate(g)\n");
    const ir::Routine& r = *p.routine("b.forward");
    for (const ir::Op& op : r.ops) {
        if (op.kind != "einsum" || op.in.size() != 2) continue;
        EXPECT_TRUE(mesh::intersect(r.tensors[op.in[0]].placement.partial, r.tensors[op.in[1]].placement.partial).empty());
    }
}

TEST(Shard, RopePassesThePartialGradientOfSharedKeys) {  // two key-value heads on four tensor-parallel ranks
    const ir::Program p = program_after("shard", {{"parallelism.tensor_parallel_degree", "4"}});
    const std::string line = op_line(p, "layer.backward", "d.k.part");
    EXPECT_EQ(line.substr(0, line.find(" {")),
              "d.k.part: f32[batch, seq, kv_heads/tp:(1)2, head_dim] partial sum tp:(2)2 = rope(d.k_rot.part, pos@whole)");
    EXPECT_EQ(type_of(p, "layer.backward", "grad.wk"), "f32[kv_heads/tp:(1)2, head_dim, hidden] partial sum tp:(2)2");
}

TEST(Shard, NormsOfHeadsAreSharedByAllHeadsRanks) {
    const ir::Program p = program_after("shard", {{"parallelism.tensor_parallel_degree", "2"}, {"model.qk_norm", "1"}});
    EXPECT_EQ(type_of(p, "layer.backward", "grad.q_norm"), "f32[head_dim] partial sum tp");
    EXPECT_EQ(collectives(p, "layer.forward").size(), 4u);
    EXPECT_EQ(collectives(p, "layer.backward").size(), 6u);
}

TEST(Shard, ParametersStandByTheTable) {
    const ir::Program p =
        program_after("shard", {{"parallelism.tensor_parallel_degree", "4"}, {"parallelism.data_parallel_shard_degree", "2"}});
    const auto axes = [&](const char* key) {
        std::string text;
        for (const ir::AxisList& list : p.param(key)->placement.dims) text += "[" + p.mesh.text(list) + "]";
        return text;
    };
    EXPECT_EQ(axes("wq"), "[tp:(1)2][tp:(2)2][][]");
    EXPECT_EQ(axes("wk"), "[tp:(1)2][][]");
    EXPECT_EQ(axes("wo"), "[][tp:(1)2][tp:(2)2][]");
    EXPECT_EQ(axes("w1"), "[tp][]");
    EXPECT_EQ(axes("w2"), "[][tp]");
    EXPECT_EQ(axes("output"), "[tp][]");
    EXPECT_EQ(axes("attention_norm"), "[]");
}

TEST(Shard, TheLossKeepsTheVocabularySplit) {
    const ir::Program p = program_after("shard", {{"parallelism.tensor_parallel_degree", "2"}});
    EXPECT_EQ(type_of(p, "head.forward", "logits"), "f32[batch, seq, vocab/tp]");
    EXPECT_EQ(type_of(p, "head.forward", "m"), "f32[batch, seq] partial max tp");
    EXPECT_EQ(collectives(p, "head.forward"), (Strings{"all_gather(n) over tp", "all_reduce(m) over tp", "all_reduce(z) over tp",
                                                       "all_reduce(minus_t) over tp"}));
}

TEST(Shard, OneRankHasNoCollectives) {
    const ir::Program p = program_after("shard");
    for (const ir::Routine& r : p.routines) EXPECT_EQ(collectives(p, r.name), Strings{}) << r.name;
}

}  // namespace
}  // namespace lockstep::testing
