// Float8 in programs: text, rules, and the laws of ops/verify_float8.h, each by a program that breaks it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "ir/text.h"
#include "kernels/kernel.h"
#include "ops/builder.h"
#include "ops/expand.h"
#include "ops/verify.h"
#include "passes/select_kernels.h"
#include "tests/ops/interpreter.h"

namespace lockstep::testing {
namespace {

// A linear whose tokens have a scale for each half of the batch. The batch is split as its groups are. Tokens are split over tp,
// too, and the ranks along it share a scale.
const std::string kLinearInFloat8 = R"(mesh dp_replicate=1 dp_shard=2 cp=1 tp=2 dp_shard:(1)2 tp:(1)2
microbatches 1
arena 0
block b x1
routine f block b kind forward entry train chunks 1 scratch 0
  dims batch=4 batch.g=2(batch/2) seq=6 hidden=4 ffn=16
  port x value read
    x: bf16[batch/dp_shard, seq/tp, hidden]
  port params params read
    w: bf16[ffn/tp, hidden] from w
  port y value write
    y: bf16[batch/dp_shard, seq, ffn/tp]
  a: f32[batch.g/dp_shard] partial max tp = amax(x)
  a.ar: f32[batch.g/dp_shard] = all_reduce(a) over tp
  q: f8e4m3[batch/dp_shard, seq/tp, hidden]; s: f32[batch.g/dp_shard] = to_float8(x, a.ar) {power_of_two=1}
  q.ag: f8e4m3[batch/dp_shard, seq, hidden] = all_gather(q) {dim=1} over tp
  b: f32[] partial max tp = amax(w)
  b.ar: f32[] = all_reduce(b) over tp
  v: f8e5m2[ffn/tp, hidden]; t: f32[] = to_float8(w, b.ar)
  y = scaled_einsum(q.ag, v, s, t) {fast=1}
)";

std::string with_replaced(std::string text, const std::string& from, const std::string& to) {
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

TEST(Float8Program, IsAcceptedAndReadsAsItIsPrinted) {
    const ir::Program p = ir::parse(kLinearInFloat8);
    const auto violation = ops::verify(p);
    EXPECT_FALSE(violation) << violation->message;
    EXPECT_EQ(ir::print(p), kLinearInFloat8);
    const ir::Routine& r = p.routines[0];
    const ir::Dim& groups = r.dims[static_cast<size_t>(r.dim("batch.g"))];
    EXPECT_EQ(groups.of, r.dim("batch"));
    EXPECT_EQ(groups.each, 2);
    EXPECT_EQ(r.tensors[static_cast<size_t>(r.find("q"))].dtype, Dtype::F8E4M3);
    EXPECT_EQ(ir::local_bytes(p.mesh, r, r.tensors[static_cast<size_t>(r.find("q"))]), 2 * 3 * 4);
}

struct BrokenFloat8 {
    const char *name, *from, *to, *invariant, *message;
};
void PrintTo(const BrokenFloat8& c, std::ostream* stream) { *stream << c.name; }

class Float8Law : public ::testing::TestWithParam<BrokenFloat8> {};

TEST_P(Float8Law, IsEnforced) {
    const auto violation = ops::verify(ir::parse(with_replaced(kLinearInFloat8, GetParam().from, GetParam().to)));
    ASSERT_TRUE(violation) << "accepted";
    EXPECT_EQ(name_of(violation->invariant), GetParam().invariant);
    EXPECT_EQ(violation->message, GetParam().message);
}

const BrokenFloat8 kBrokenFloat8[] = {
    {"read_by_another_op", "  y = scaled_einsum",
     "  z: f8e4m3[batch/dp_shard, seq, hidden] = add(q.ag, q.ag)\n  y = scaled_einsum", "float8",
     "f, op add: reads q.ag, which is float8"},
    {"made_by_a_cast", "  y = scaled_einsum", "  z: f8e4m3[batch/dp_shard, seq/tp, hidden] = cast(x)\n  y = scaled_einsum",
     "float8", "f, op cast: makes z, which is float8"},
    {"read_by_a_cast", "  y = scaled_einsum", "  z: f32[batch/dp_shard, seq/tp, hidden] = cast(q)\n  y = scaled_einsum", "float8",
     "f, op cast: reads q, which is float8"},
    {"read_by_a_product", "  y = scaled_einsum(q.ag, v, s, t) {fast=1}", "  y = einsum(q.ag, v)", "float8",
     "f, op einsum: reads q.ag, which is float8"},
    {"amax_of_another", "v: f8e5m2[ffn/tp, hidden]; t: f32[] = to_float8(w, b.ar)",
     "c: f32[] partial max dp_shard,tp = amax(x)\n  c.ar: f32[] = all_reduce(c) over dp_shard,tp\n"
     "  v: f8e5m2[ffn/tp, hidden]; t: f32[] = to_float8(w, c.ar)",
     "float8", "f, op to_float8: c.ar is of x, not of w"},
    {"amax_of_a_result_of_another_op", "v: f8e5m2[ffn/tp, hidden]; t: f32[] = to_float8(w, b.ar)",
     "z: f32[batch/dp_shard, seq/tp, hidden]; c: f32[] partial max dp_shard,tp = swiglu(x, x) {amax=[0]}\n"
     "  c.ar: f32[] = all_reduce(c) over dp_shard,tp\n  v: f8e5m2[ffn/tp, hidden]; t: f32[] = to_float8(w, c.ar)",
     "float8", "f, op to_float8: c.ar is of z, not of w"},
    {"amax_of_a_result_that_lost_an_axis", "v: f8e5m2[ffn/tp, hidden]; t: f32[] = to_float8(w, b.ar)",
     "z: f32[batch/dp_shard, seq/tp, hidden]; c: f32[] = swiglu(x, x) {amax=[0]}\n"
     "  v: f8e5m2[ffn/tp, hidden]; t: f32[] = to_float8(w, c)",
     "partial", "f, op amax: c is partial over 'dp_shard,tp', not over ''"},
    {"amax_by_another_op", "  v: f8e5m2[ffn/tp, hidden]; t: f32[] = to_float8(w, b.ar)",
     "  c: f32[] = scale(b.ar) {c=2.0}\n  v: f8e5m2[ffn/tp, hidden]; t: f32[] = to_float8(w, c)", "float8",
     "f, op to_float8: c is made by scale"},
    {"amax_of_one_rank", "to_float8(x, a.ar)", "to_float8(x, a)", "partial",
     "f, op to_float8: is not linear in a, which is a partial sum"},
    {"amax_that_lost_an_axis", "a: f32[batch.g/dp_shard] partial max tp", "a: f32[batch.g/dp_shard]", "partial",
     "f, op amax: a is partial over 'tp', not over ''"},
    {"groups_of_other_ranks",
     "  a: f32[batch.g/dp_shard] partial max tp = amax(x)\n  a.ar: f32[batch.g/dp_shard] = all_reduce(a) over tp\n"
     "  q: f8e4m3[batch/dp_shard, seq/tp, hidden]; s: f32[batch.g/dp_shard]",
     "  a: f32[batch.g] partial max dp_shard,tp = amax(x)\n  a.ar: f32[batch.g] = all_reduce(a) over dp_shard,tp\n"
     "  q: f8e4m3[batch/dp_shard, seq/tp, hidden]; s: f32[batch.g]",
     "float8", "f, op amax: batch.g is split over '' and batch over 'dp_shard': a rank has elements of other groups"},
    {"both_with_few_bits",
     "q: f8e4m3[batch/dp_shard, seq/tp, hidden]; s: f32[batch.g/dp_shard] = to_float8(x, a.ar) {power_of_two=1}\n"
     "  q.ag: f8e4m3",
     "q: f8e5m2[batch/dp_shard, seq/tp, hidden]; s: f32[batch.g/dp_shard] = to_float8(x, a.ar) {power_of_two=1}\n  q.ag: f8e5m2",
     "shape", "f, op scaled_einsum: its factors are both f8e5m2"},
    {"factor_that_is_none", "scaled_einsum(q.ag, v, s, t)", "scaled_einsum(q.ag, w, s, t)", "shape",
     "f, op scaled_einsum: w is bf16, not float8"},
    {"scales_exchanged", "scaled_einsum(q.ag, v, s, t)", "scaled_einsum(q.ag, v, t, s)", "shape",
     "f, op scaled_einsum: batch.g of s is no dim of v and coarse of none"},
    {"scale_of_a_narrow_type", "s: f32[batch.g/dp_shard]", "s: bf16[batch.g/dp_shard]", "shape",
     "f, op to_float8: a.ar and s are of two types"},
    {"amax_of_a_narrow_type", "b: f32[] partial max tp = amax(w)\n  b.ar: f32[]",
     "b: bf16[] partial max tp = amax(w)\n  b.ar: bf16[]", "shape", "f, op amax: b is not f32"},
    {"codes_of_no_float8", "v: f8e5m2", "v: bf16", "shape", "f, op to_float8: v is bf16, not float8"},
    {"coarse_dim_of_another_size", "batch.g=2(batch/2)", "batch.g=2(batch/1)", "names",
     "f: batch.g is not aligned with what it names"},
    {"coarse_of_no_dim", "batch.g=2(batch/2)", "batch.g=2", "shape",
     "f, op amax: batch.g of a is no dim of x and coarse of none"},
};
INSTANTIATE_TEST_SUITE_P(Broken, Float8Law, ::testing::ValuesIn(kBrokenFloat8),
                         [](const auto& info) { return std::string(info.param.name); });

// Rows in blocks of 32 along what the product contracts, which is split: each rank has whole blocks, and their scales.
const std::string kLinearInBlocks = R"(mesh dp_replicate=1 dp_shard=1 cp=1 tp=2 tp:(1)2
microbatches 1
arena 0
block b x1
routine f block b kind forward entry train chunks 1 scratch 0
  dims seq=6 hidden=128 hidden.b=4(hidden/32) ffn=16
  port x value read
    x: bf16[seq, hidden/tp]
  port params params read
    w: bf16[ffn, hidden/tp] from w
  port y value write
    y: f32[seq, ffn]
  q: f8e4m3[seq, hidden/tp]; s: e8m0[seq, hidden.b/tp] = to_blocks(x) {along='hidden', block=32, rounding='floor'}
  v: f8e4m3[ffn, hidden/tp]; t: e8m0[ffn, hidden.b/tp] = to_blocks(w) {along='hidden', block=32, rounding='rceil'}
  z: f32[seq, ffn] partial sum tp = scaled_einsum(q, v, s, t) {fast=1}
  y = all_reduce(z) over tp
)";

TEST(Float8Program, InBlocksIsAcceptedAndReadsAsItIsPrinted) {
    const ir::Program p = ir::parse(kLinearInBlocks);
    const auto violation = ops::verify(p);
    EXPECT_FALSE(violation) << violation->message;
    EXPECT_EQ(ir::print(p), kLinearInBlocks);
    const ir::Routine& r = p.routines[0];
    EXPECT_EQ(ir::local_bytes(p.mesh, r, r.tensors[static_cast<size_t>(r.find("s"))]), 6 * 2);
}

class BlocksLaw : public ::testing::TestWithParam<BrokenFloat8> {};

TEST_P(BlocksLaw, IsEnforced) {
    const auto violation = ops::verify(ir::parse(with_replaced(kLinearInBlocks, GetParam().from, GetParam().to)));
    ASSERT_TRUE(violation) << "accepted";
    EXPECT_EQ(name_of(violation->invariant), GetParam().invariant);
    EXPECT_EQ(violation->message, GetParam().message);
}

const BrokenFloat8 kBrokenBlocks[] = {
    {"of_another_size", "block=32, rounding='floor'", "block=16, rounding='floor'", "shape",
     "f, op to_blocks: s has not the dims of x with blocks of 16 along hidden"},
    {"along_another_dim", "along='hidden', block=32, rounding='floor'", "along='seq', block=32, rounding='floor'", "shape",
     "f, op to_blocks: s has not the dims of x with blocks of 32 along seq"},
    {"along_no_dim", "along='hidden', block=32, rounding='floor'", "along='width', block=32, rounding='floor'", "shape",
     "f, op to_blocks: s has not the dims of x with blocks of 32 along no dim"},
    {"of_an_unknown_rounding", "rounding='floor'", "rounding='even'", "shape",
     "f, op to_blocks: its rounding is even, not floor or rceil"},
    {"with_a_rounded_scale_of_floats", "s: e8m0[seq, hidden.b/tp]", "s: f32[seq, hidden.b/tp]", "shape",
     "f, op to_blocks: s is not e8m0"},
    {"with_powers_and_no_rounding", ", rounding='floor'", "", "shape", "f, op to_blocks: s is not f32"},
    {"that_are_no_whole_ones", "hidden=128 hidden.b=4(hidden/32)", "hidden=128 hidden.b=4(hidden/16)", "names",
     "f: hidden.b is not aligned with what it names"},
    {"codes_of_no_float8", "q: f8e4m3", "q: bf16", "shape", "f, op to_blocks: q is bf16, not float8"},
    {"scale_read_by_another_op", "  y = all_reduce(z) over tp",
     "  u: e8m0[seq, hidden.b/tp] = add(s, s)\n  y = all_reduce(z) over tp", "float8", "f, op add: reads s, which is e8m0"},
    {"scale_made_by_a_cast", "  y = all_reduce(z) over tp", "  u: e8m0[seq, hidden/tp] = cast(x)\n  y = all_reduce(z) over tp",
     "float8", "f, op cast: makes u, which is e8m0"},
    {"scale_as_a_factor", "scaled_einsum(q, v, s, t)", "scaled_einsum(s, v, s, t)", "shape",
     "f, op scaled_einsum: s is e8m0, not float8"},
    {"scales_exchanged", "scaled_einsum(q, v, s, t)", "scaled_einsum(q, v, t, s)", "shape",
     "f, op scaled_einsum: ffn of t is no dim of q and coarse of none"},
    {"amax_of_powers", "  y = all_reduce(z) over tp", "  u: e8m0[seq] partial max tp = amax(x)\n  y = all_reduce(z) over tp",
     "shape", "f, op amax: u is not f32"},
};
INSTANTIATE_TEST_SUITE_P(Broken, BlocksLaw, ::testing::ValuesIn(kBrokenBlocks),
                         [](const auto& info) { return std::string(info.param.name); });

// Two ranks that have half of each block, as powers of two and as floats.
TEST(Float8Program, ARankHasWholeBlocks) {
    const std::string text = R"(mesh dp_replicate=1 dp_shard=1 cp=1 tp=2 tp:(1)2
microbatches 1
arena 0
block b x1
routine f block b kind forward entry train chunks 1 scratch 0
  dims seq=6 hidden=128 hidden.b=1(hidden/128)
  port x value read
    x: bf16[seq, hidden/tp]
  port y value write
    q: f8e4m3[seq, hidden/tp]
    s: f32[seq, hidden.b]
  q; t: f32[seq, hidden.b] partial sum tp = to_blocks(x) {along='hidden', block=128}
  s = all_reduce(t) over tp
)";
    const auto floats = ops::verify(ir::parse(text));
    ASSERT_TRUE(floats) << "accepted";
    EXPECT_EQ(name_of(floats->invariant), std::string_view("float8"));
    EXPECT_EQ(floats->message, "f, op to_blocks: hidden.b is split over '' and hidden over 'tp': a rank has no whole blocks");
    const std::string of_powers =
        with_replaced(with_replaced(text, "t: f32", "t: e8m0"), "block=128", "block=128, rounding='floor'");
    const auto powers = ops::verify(ir::parse(with_replaced(of_powers, "s: f32", "s: e8m0")));
    ASSERT_TRUE(powers) << "accepted";
    EXPECT_EQ(powers->message, "f, op to_blocks: t is e8m0 and partial");
    const auto whole = ops::verify(ir::parse(with_replaced(
        with_replaced(with_replaced(text, "t: f32[seq, hidden.b] partial sum tp", "s"), "  s = all_reduce(t) over tp\n", ""),
        "x: bf16[seq, hidden/tp]", "x: bf16[seq, hidden]")));
    ASSERT_TRUE(whole) << "q is split, and x is not";
}

// What came by a port, was gathered or renamed, and what moved elements, is followed as far as it can be.
TEST(Float8Program, MovedElementsAreAccepted) {
    const std::string text = R"(mesh dp_replicate=1 dp_shard=1 cp=2 tp=1 cp:(1)2
microbatches 1
arena 0
block b x1
routine f block b kind forward entry train chunks 1 scratch 0
  dims seq=8 kv_seq=8(seq/1) hidden=4 seq.block=4
  port x value read
    x: f32[seq/cp, hidden]
  port saved frame read
    amax: f32[] from amax
  port y value write
    y: f32[kv_seq, hidden]
  q: f8e4m3[seq/cp, hidden]; s: f32[] = to_float8(x, amax)
  r: f8e4m3[kv_seq/cp, hidden] = rename(q)
  p: f8e4m3[kv_seq/cp, hidden] = permute(r) {by=1} over cp
  g: f8e4m3[kv_seq, hidden] = all_gather(p) {dim=0} over cp
  y = from_float8(g, s)
)";
    const auto violation = ops::verify(ir::parse(text));
    EXPECT_FALSE(violation) << violation->message;
    const auto narrow = ops::verify(ir::parse(with_replaced(
        text, "  y = from_float8(g, s)", "  z: f8e4m3[kv_seq/cp, hidden] partial sum cp = rename(q)\n  y = from_float8(g, s)")));
    ASSERT_TRUE(narrow);
}

// A scale of groups of what is contracted, and one of rows: FLOPs are those of the product of the factors.
TEST(Float8Rules, ProductsCountAndExpandAsThoseOfOtherTypes) {
    const ir::Program p = ir::parse(kLinearInFloat8);
    ir::Routine r = p.routines[0];
    const ir::Op op = r.ops.back();
    ASSERT_EQ(op.kind, ir::kScaledEinsum);
    EXPECT_EQ(ops::flops_of(p.mesh, r, op).executed, 2.0 * 2 * 6 * 4 * 8);
    EXPECT_EQ(ops::flops_of(p.mesh, r, op).model, 2.0 * 4 * 6 * 4 * 16 / 4);
    ops::MatmulShape shape;
    ASSERT_TRUE(ops::is_matmul(p.mesh, r, op, &shape));
    EXPECT_EQ(shape.m, 2 * 6);
    EXPECT_EQ(shape.n, 8);
    EXPECT_EQ(shape.k, 4);
    EXPECT_EQ(ops::bytes_moved(p.mesh, r, op), 2 * 6 * 4 + 8 * 4 + 4 + 4 + 2 * 2 * 6 * 8);
    const std::vector<ir::Op> plain = ops::expanded(r, op);
    ASSERT_EQ(plain.size(), 4u);
    EXPECT_EQ(plain[0].kind, ir::kFromFloat8);
    EXPECT_EQ(plain[2].kind, ir::kEinsum);
    EXPECT_EQ(plain[3].kind, ir::kApplyScales);
    EXPECT_EQ(plain[3].out, op.out);
    EXPECT_EQ(r.tensors[static_cast<size_t>(plain[0].out[0])].dtype, Dtype::BF16);
}

// Without units for float8: codes are multiplied as bfloat16, and scales of what the product keeps are applied behind it.
TEST(Float8Rules, ExpansionsRoundNoScaleThatCanComeLater) {
    const ir::Program whole = ir::parse(kLinearInFloat8), blocks = ir::parse(kLinearInBlocks);
    ir::Routine r = whole.routines[0];
    std::vector<ir::Op> plain = ops::expanded(r, r.ops.back());
    ASSERT_EQ(plain.size(), 4u);
    const auto dtype = [&](ir::TensorId t) { return r.tensors[static_cast<size_t>(t)].dtype; };
    EXPECT_EQ(plain[0].in.size(), 1u);
    EXPECT_EQ(plain[1].in.size(), 1u);
    EXPECT_EQ(dtype(plain[0].out[0]), Dtype::BF16);
    EXPECT_EQ(dtype(plain[2].out[0]), Dtype::F32);
    EXPECT_EQ(plain[3].kind, ir::kApplyScales);
    EXPECT_EQ(plain[3].in, (std::vector<ir::TensorId>{plain[2].out[0], r.find("s"), r.find("t")}));
    EXPECT_EQ(plain[3].out[0], r.find("y"));
    r = blocks.routines[0];
    plain = ops::expanded(r, r.ops[2]);
    ASSERT_EQ(plain.size(), 3u);
    EXPECT_EQ(plain[0].in, (std::vector<ir::TensorId>{r.find("q"), r.find("s")}));
    EXPECT_EQ(plain[2].kind, ir::kEinsum);
    EXPECT_EQ(plain[2].out[0], r.find("z"));
}

TEST(Float8Rules, GroupsAreOfTheirTensor) {
    const std::vector<ir::Dim> all = {
        {"rows", 8, 8}, {"rows.g", 2, 2, ir::DimRole::Other, 0, 4}, {"columns", 6, 6}, {"other", 3, 3}};
    const auto refusal = [&](std::vector<ir::DimId> dims, Dtype amax = Dtype::F32, Dtype x = Dtype::F32) {
        ir::Routine r;
        r.dims = all;
        ops::Builder b(r);
        ir::Op op;
        op.kind = ir::kAmax;
        op.in = {b.make({"x", {0, 2}, x})}, op.out = {b.make({"a", std::move(dims), amax})};
        return ops::check_op(r, op);
    };
    for (const std::vector<ir::DimId>& dims : std::vector<std::vector<ir::DimId>>{{}, {0}, {2}, {1}, {1, 2}, {2, 1}, {0, 2}})
        EXPECT_EQ(refusal(dims), "");
    EXPECT_EQ(refusal({3}), "other of a is no dim of x and coarse of none");
    EXPECT_EQ(refusal({0, 1}), "a has groups of rows twice");
    EXPECT_EQ(refusal({}, Dtype::F64), "a is not f32");
    EXPECT_EQ(refusal({}, Dtype::F32, Dtype::F64), "a is not f64");
    EXPECT_EQ(refusal({}, Dtype::F64, Dtype::F64), "");
    EXPECT_EQ(refusal({}, Dtype::F32, Dtype::I32), "x is i32");
}

// Zeros have a finite scale; an infinity has scale 0 and is NaN; a NaN stays and takes its group with it.
TEST(Float8Kernels, SpecialValuesAreThoseOfTorchao) {
    const ir::Program p = ir::parse(R"(mesh dp_replicate=1 dp_shard=1 cp=1 tp=1
block b x1
routine f block b kind forward entry train chunks 1 scratch 0
  dims n=4
  port x value read
    x: f32[n]
  port y value write
    a: f32[]
    q: f8e4m3[n]
    s: f32[]
    z: f32[n]
  a = amax(x)
  q; s = to_float8(x, a)
  z = from_float8(q, s)
)");
    constexpr double kInfinite = std::numeric_limits<double>::infinity();
    for (const ops::KernelCatalog& catalog : {kernels::cpu_catalog(1), kernels::reference_catalog()}) {
        ir::Routine r = p.routines[0];
        passes::select_kernels(p.mesh, r, catalog);
        Interpreter run(p.mesh, r);
        const auto store = [&](const std::vector<double>& x) {
            run.set("x", x);
            run.run();
        };
        const auto all_are_nan = [&](const char* name) {
            const std::vector<double> values = run.get(name);
            return std::all_of(values.begin(), values.end(), [](double v) { return std::isnan(v); });
        };
        using Values = std::vector<double>;
        store({-448, 224, 1, 0});
        EXPECT_EQ(run.get("q"), (Values{-448, 224, 1, 0})) << catalog.name;
        EXPECT_EQ(run.get("s"), Values{1});
        store({0, 0, 0, 0});
        EXPECT_EQ(run.get("a"), Values{0});
        EXPECT_EQ(run.get("z"), (Values{0, 0, 0, 0}));
        EXPECT_EQ(run.get("s"), Values{1 / static_cast<float>(448 / 1e-12)});
        store({1, kInfinite, -2, 0});
        EXPECT_EQ(run.get("a"), Values{kInfinite});
        EXPECT_EQ(run.get("q")[0], 0);
        EXPECT_TRUE(std::isnan(run.get("q")[1]));
        EXPECT_EQ(run.get("s"), Values{kInfinite});
        EXPECT_TRUE(all_are_nan("z"));
        store({1, -kInfinite, std::nan(""), 3});
        EXPECT_TRUE(all_are_nan("a") && all_are_nan("q") && all_are_nan("s") && all_are_nan("z")) << catalog.name;
    }
}

// The scale of a block of which an element is not finite is NaN, and so are its values; those of other blocks stay. Blocks of two
// rows, of two columns each.
TEST(Float8Kernels, BlocksWithSpecialValues) {
    constexpr double kInfinite = std::numeric_limits<double>::infinity(), kNone = -777;
    const auto without_nan = [](std::vector<double> values) {
        for (double& v : values) v = std::isnan(v) ? kNone : v;
        return values;
    };
    for (const ops::KernelCatalog& catalog : {kernels::cpu_catalog(1), kernels::reference_catalog()}) {
        for (const std::string rounding : {"floor", "rceil"}) {
            const ir::Program p = ir::parse(R"(mesh dp_replicate=1 dp_shard=1 cp=1 tp=1
block b x1
routine f block b kind forward entry train chunks 1 scratch 0
  dims n=6 m=2 n.b=3(n/2)
  port x value read
    x: f32[n, m]
  port y value write
    q: f8e4m3[n, m]
    s: e8m0[n.b, m]
    z: f32[n, m]
  q; s = to_blocks(x) {along='n', block=2, rounding=')" +
                                            rounding +
                                            R"('}
  z = from_float8(q, s)
)");
            ir::Routine r = p.routines[0];
            passes::select_kernels(p.mesh, r, catalog);
            Interpreter run(p.mesh, r);
            run.set("x", {448, 512, -3, 1, kInfinite, 0, 1, 0, std::nan(""), 464, 0, 460});
            run.run();
            using Values = std::vector<double>;
            // 464 is beyond the largest value, which is taken for it; of twice the scale it is halfway, and the even code's.
            const double last = rounding == "floor" ? 1 : 2;
            EXPECT_EQ(without_nan(run.get("s")), (Values{1, 2, kNone, 0x1p-127, kNone, last})) << catalog.name << rounding;
            EXPECT_EQ(without_nan(run.get("z")), (Values{448, 512, -3, 1, kNone, 0, kNone, 0, kNone, 448, kNone, 448}))
                << catalog.name << rounding;
            EXPECT_EQ(run.get("q")[9], last == 1 ? 448 : 224);
        }
    }
}

}  // namespace
}  // namespace lockstep::testing
