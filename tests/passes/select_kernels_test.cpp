#include "passes/select_kernels.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "ir/text.h"
#include "kernels/kernel.h"
#include "ops/verify.h"
#include "tests/compile/recipes.h"
#include "tests/passes/program_text.h"

namespace lockstep::testing {
namespace {

using Strings = std::vector<std::string>;

ops::KernelEntry kernel(const std::string& op, const std::string& name = "", Dtype dtype = Dtype::F32) {
    return {op, dtype, name.empty() ? "k." + op : name, -1, false, {}, {}};
}
ops::KernelEntry adding(ops::KernelEntry entry) {
    entry.accumulates = 0;
    return entry;
}
ops::KernelEntry in_place(ops::KernelEntry entry) {
    entry.in_place = true;
    return entry;
}

ir::Program selected(const std::string& body, const std::vector<ops::KernelEntry>& entries,
                     std::shared_ptr<const ops::CostTable> costs = nullptr) {
    ir::Program p = ir::parse(
        "mesh dp_replicate=1 dp_shard=1 cp=1 tp=2 tp:(1)2\nblock b x1\nroutine r block b kind backward entry train chunks 1 "
        "scratch 0\n  dims seq=4 hidden=8 ffn=6\n" +
        body);
    ops::KernelCatalog catalog;
    catalog.name = "toy", catalog.entries = entries, catalog.costs = std::move(costs);
    p = passes::select_kernels(std::move(p), catalog);
    const auto violation = ops::verify(p);
    EXPECT_FALSE(violation) << violation->message << "\n" << ir::print(p);
    return p;
}

const std::string kInputRows = "  port x value read\n    x: f32[seq/tp, hidden]\n    w: f32[hidden]\n",
                  kResultRows = "  port y value write\n    y: f32[seq/tp, hidden]\n";
const std::string kNormedRows = kInputRows + kResultRows + "  y; r: f32[seq/tp] = rmsnorm(x, w) {eps=0.5, over='hidden'}\n";

TEST(SelectKernels, ACompositeWithAKernelStays) {
    EXPECT_EQ(op_lines(selected(kNormedRows, {kernel("rmsnorm")}), "r"),
              (Strings{"y; r: f32[seq/tp] = rmsnorm(x, w) {eps=0.5, over='hidden'} kernel k.rmsnorm"}));
}

TEST(SelectKernels, ACompositeWithoutOneIsExpandedInItsPlacement) {
    EXPECT_EQ(
        op_lines(selected(kNormedRows, {kernel("einsum"), kernel("unary")}), "r"),
        (Strings{"x.norm.ss: f32[seq/tp] = einsum(x, x) kernel k.einsum",
                 "r: f32[seq/tp] = unary(x.norm.ss) {eps=0.5, fn='rsqrt_mean', n=8} kernel k.unary",
                 "x.norm.hat: f32[seq/tp, hidden] = einsum(x, r) kernel k.einsum", "y = einsum(x.norm.hat, w) kernel k.einsum"}));
}

TEST(SelectKernels, ADerivedBackwardReadsWhatWasSaved) {
    const ir::Program p = selected(
        "  port x value read\n    x: f32[seq/tp, hidden]\n    w: f32[hidden]\n    r: f32[seq/tp]\n    dy: f32[seq/tp, hidden]\n"
        "  port d value write\n    dx: f32[seq/tp, hidden]\n    dw: f32[hidden] partial sum tp\n"
        "  dx; dw = rmsnorm_backward(dy, x, w, r) {eps=0.5, over='hidden'}\n",
        {kernel("einsum"), kernel("unary"), kernel("scale"), kernel("add")});
    for (const std::string& line : op_lines(p, "r")) EXPECT_EQ(line.find("rsqrt_mean"), std::string::npos) << line;
    EXPECT_EQ(op_line(p, "r", "dw").substr(0, 10), "dw = einsu");
}

TEST(SelectKernels, TheFirstThatServesIsTaken) {
    ops::KernelEntry never = kernel("scale", "k.never"), first = kernel("scale", "k.first");
    never.serves = [](const mesh::Mesh&, const ir::Routine&, const ir::Op&) { return false; };
    first.workspace_bytes = [](const mesh::Mesh& m, const ir::Routine& r, const ir::Op& op) {
        return ir::local_bytes(m, r, r.tensors[op.in[0]]);
    };
    const ir::Program p = selected(kInputRows + kResultRows + "  y = scale(x) {c=2.0}\n",
                                   {kernel("scale", "k.double", Dtype::F64), never, first, kernel("scale", "k.second")});
    EXPECT_EQ(p.routines[0].ops[0].kernel, "k.first");
    EXPECT_EQ(p.routines[0].ops[0].workspace_bytes, 2 * 8 * 4);  // of this rank's part
}

TEST(SelectKernels, AMissingKernelIsNamed) {
    try {
        selected(kInputRows + kResultRows + "  y = scale(x) {c=2.0}\n", {kernel("scale", "k.double", Dtype::F64)});
        FAIL() << "accepted";
    } catch (const InternalError& e) {
        EXPECT_STREQ(e.what(), "select_kernels: catalog toy has no kernel for scale on f32");
    }
}

TEST(SelectKernels, InPlaceNeedsBothSides) {
    const auto attribute = [](const ops::KernelEntry& entry, const std::string& op) {
        return selected(kInputRows + kResultRows + op, {entry}).routines[0].ops[0].attrs.contains("in_place");
    };
    EXPECT_TRUE(attribute(in_place(kernel("scale")), "  y = scale(x) {c=2.0}\n"));
    EXPECT_FALSE(attribute(kernel("scale"), "  y = scale(x) {c=2.0}\n"));
    EXPECT_FALSE(attribute(in_place(kernel("einsum")), "  y = einsum(x, w)\n"));
}

const std::string kGradient =
    "  port x value read\n    x: f32[seq/tp, hidden]\n    d: f32[seq/tp, ffn]\n  port g gradients accumulate\n    g: f32[ffn, "
    "hidden] partial sum tp\n"
    "  part: f32[ffn, hidden] partial sum tp = einsum(d, x)\n";

TEST(SelectKernels, AnAccumulateIsFoldedIntoAKernelThatAdds) {
    const ir::Program p = selected(kGradient + "  +g = accumulate(part)\n", {adding(kernel("einsum")), kernel("accumulate")});
    EXPECT_EQ(op_lines(p, "r"), (Strings{"+g = einsum(d, x) kernel k.einsum"}));
}

TEST(SelectKernels, AnAccumulateStaysWhereNothingAdds) {
    const ir::Program p = selected(kGradient + "  +g = accumulate(part)\n", {kernel("einsum"), kernel("accumulate")});
    EXPECT_EQ(op_lines(p, "r").back(), "+g = accumulate(part) kernel k.accumulate");
}

TEST(SelectKernels, AnAccumulateStaysWhereItsOperandHasOtherUses) {
    const ir::Program p = selected(kGradient + "  +g = accumulate(part)\n  +g = accumulate(part)\n",
                                   {adding(kernel("einsum")), kernel("accumulate")});
    EXPECT_EQ(op_lines(p, "r").size(), 3u);
}

TEST(SelectKernels, AnAccumulateThatWidensStays) {
    const ir::Program p = selected(
        "  port x value read\n    x: f32[seq/tp, hidden]\n  port s value accumulate\n    s: f64[] partial sum tp\n"
        "  sum: f32[] partial sum tp = einsum(x)\n  +s = accumulate(sum)\n",
        {adding(kernel("einsum")), kernel("accumulate", "k.widen", Dtype::F64)});
    EXPECT_EQ(op_lines(p, "r").back(), "+s = accumulate(sum) kernel k.widen");
}

TEST(SelectKernels, OfSeveralKernelsTheTableChooses) {
    const std::vector<ops::KernelEntry> entries = {kernel("einsum", "k.first"), kernel("einsum", "k.second"),
                                                   kernel("accumulate")};
    const auto chosen = [&](double first_s, double second_s) {
        auto costs = std::make_shared<ops::CostTable>();
        costs->flops_per_s["f32"] = {1e9}, costs->bytes_per_s = {1e9};
        for (const auto& [name, time_s] : {std::pair{"k.first", first_s}, std::pair{"k.second", second_s}}) {
            if (time_s > 0) costs->rows.push_back({{"einsum", name, "f32", "", 1, {1, 1}, 1, 1}, time_s, time_s, time_s});
        }
        return selected(kGradient + "  +g = accumulate(part)\n", entries, costs).routines[0].ops[0].kernel;
    };
    EXPECT_EQ(chosen(1, 2), "k.first");
    EXPECT_EQ(chosen(2, 1), "k.second");
    EXPECT_EQ(chosen(0, 1), "k.first");  // nothing is known of it: the static order stays
    EXPECT_EQ(chosen(1, 0), "k.first");
}

// The kinds of the layer's ops, of the small Llama on a backend with every kernel that one op of the list asks for.
Strings kinds_with(const std::vector<std::string>& fused, const std::string& routine, const Settings& settings = {}) {
    ops::KernelCatalog catalog = kernels::reference_catalog();
    for (const char* op : {"rmsnorm", "rmsnorm_backward"}) catalog.entries.push_back(kernel(op));
    for (const std::string& op : fused) catalog.entries.push_back(kernel(op));
    const ir::Program p = passes::select_kernels(program_after("recompute", settings), catalog);
    const auto violation = ops::verify(p);
    EXPECT_FALSE(violation) << violation->message << "\n" << ir::print(p);
    Strings kinds;
    for (const ir::Op& op : p.routine(routine)->ops) kinds.push_back(op.kind);
    return kinds;
}
long count_of(const Strings& kinds, const std::string& kind) { return std::count(kinds.begin(), kinds.end(), kind); }

TEST(SelectKernels, AResidualIsAddedByTheNormBehindIt) {
    const Strings apart = kinds_with({}, "layer.forward"), fused = kinds_with({"add_rmsnorm"}, "layer.forward");
    EXPECT_EQ(count_of(apart, "add"), 2);
    EXPECT_EQ(count_of(fused, "add"), 1);  // the last one's norm is in another layer
    EXPECT_EQ(count_of(fused, "add_rmsnorm"), 1);
    EXPECT_EQ(count_of(fused, "rmsnorm"), count_of(apart, "rmsnorm") - 1);
}

TEST(SelectKernels, AResidualsCotangentIsAddedByTheNormsBackward) {
    const Strings apart = kinds_with({}, "layer.backward"), fused = kinds_with({"rmsnorm_backward_add"}, "layer.backward");
    EXPECT_EQ(count_of(fused, "rmsnorm_backward_add"), 2);
    EXPECT_EQ(count_of(fused, "add"), count_of(apart, "add") - 2);
    EXPECT_EQ(count_of(fused, "rmsnorm_backward"), 0);
}

TEST(SelectKernels, SumsOfProductsAreAddedByTheProducts) {
    const Settings of_three = {{"training.pack_products", "false"}};
    const Strings apart = kinds_with({}, "layer.backward", of_three), fused = kinds_with({"addmm"}, "layer.backward", of_three);
    EXPECT_EQ(count_of(apart, "add"), 4);  // of queries, keys and values; of gate and up; two residuals
    EXPECT_EQ(count_of(fused, "add"), 2);
    EXPECT_EQ(count_of(fused, "addmm"), 3);
}

TEST(SelectKernels, APartialSumIsNotAddedToAWholeTerm) {
    const Strings fused = kinds_with({"addmm"}, "layer.forward", {{"parallelism.tensor_parallel_degree", "2"}});
    EXPECT_EQ(count_of(fused, "addmm"), 0);
    EXPECT_EQ(count_of(kinds_with({"addmm"}, "layer.forward"), "addmm"), 2);
}

TEST(SelectKernels, QueriesKeysAndValuesAreOneOp) {
    for (const char* tp : {"1", "2"}) {
        const Strings fused = kinds_with({"qkv_rope"}, "layer.forward", {{"parallelism.tensor_parallel_degree", tp}});
        EXPECT_EQ(count_of(fused, "qkv_rope"), 1);
        EXPECT_EQ(count_of(fused, "split_qkv"), 0);
        EXPECT_EQ(count_of(fused, "einsum"), 4);  // output of attention, gate and up, down, and the product within swiglu
    }
}

TEST(SelectKernels, QueriesThatAreNormedStayApart) {
    EXPECT_EQ(count_of(kinds_with({"qkv_rope"}, "layer.forward", {{"model.qk_norm", "true"}}), "qkv_rope"), 0);
    EXPECT_EQ(count_of(kinds_with({"qkv_rope"}, "layer.forward", {{"model.qkv_bias", "true"}}), "qkv_rope"), 0);
}

TEST(SelectKernels, TheLossAndItsGradientAreOneOpWhereTheVocabularyIsWhole) {
    const auto of_loss = [](const Settings& settings, const std::string& routine) {
        return kinds_with({"cross_entropy", "cross_entropy_backward", "cross_entropy_gradient"}, routine, settings);
    };
    EXPECT_EQ(of_loss({}, "head.loss"), (Strings{"einsum", "cross_entropy_gradient", "einsum", "einsum"}));
    const Strings sharded = of_loss({{"parallelism.tensor_parallel_degree", "2"}}, "head.loss");
    EXPECT_EQ(count_of(sharded, "cross_entropy_gradient"), 0);
    EXPECT_EQ(count_of(sharded, "cross_entropy"), 1);
    const Strings apart = of_loss({{"training.fuse_loss", "false"}}, "head.forward");
    EXPECT_EQ(count_of(apart, "cross_entropy"), 1);
}

TEST(SelectKernels, WhatANormOrSwigluMakesHasItsAmaxFromThem) {
    const Settings float8 = {{"model.converters", "quantize.linear.float8"},
                             {"activation_checkpoint.mode", "full"},
                             {"model.dim", "16"},
                             {"model.head_dim", "16"},
                             {"model.ffn_dim", "32"}};
    const std::vector<std::string> kinds = {"swiglu", "swiglu_backward"};
    // Of what attention made, and of gradients of a block's results, there is an op.
    EXPECT_EQ(count_of(kinds_with(kinds, "layer.forward", float8), "amax"), 1);
    const Strings backward = kinds_with(kinds, "layer.backward", float8);
    EXPECT_EQ(count_of(backward, "amax"), 4);
    EXPECT_EQ(count_of(backward, "swiglu"), 0);  // its backward gives its result, and the amax of both
    ops::KernelCatalog described = kernels::reference_catalog();
    described.gives_more = false;
    for (const char* op : {"rmsnorm", "swiglu"}) described.entries.push_back(kernel(op));
    const ir::Program p = passes::select_kernels(program_after("recompute", float8), described);
    for (const ir::Op& op : p.routine("layer.forward")->ops) EXPECT_FALSE(op.attrs.contains(ops::kAmaxOf));
}

TEST(SelectKernels, CollectivesAreTheCommunicators) {
    const ir::Program p =
        selected(kInputRows + "  port y value write\n    y: f32[seq, hidden]\n  y = all_gather(x) {dim=0} over tp\n", {});
    EXPECT_EQ(p.routines[0].ops[0].kernel, "comm");
}

TEST(SelectKernels, RecomputedOpsStayMarkedWhenExpanded) {
    const ir::Program p = program_after("select_kernels", {{"activation_checkpoint.mode", "full"}});
    int from_norm = 0;
    for (const ir::Op& op : p.routine("layer.backward")->ops) {
        if (op.note != "from rmsnorm") continue;
        ++from_norm;
        EXPECT_TRUE(op.attrs.contains("recomputed"));
    }
    EXPECT_EQ(from_norm, 8);  // both norms of the layer
}

}  // namespace
}  // namespace lockstep::testing
