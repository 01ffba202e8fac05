#include "passes/keep_preactivations.h"

#include <gtest/gtest.h>

#include <set>

#include "check/check.h"
#include "ir/text.h"
#include "kernels/cuda/planned.h"
#include "ops/verify.h"
#include "tests/compile/recipes.h"
#include "tests/passes/program_text.h"

namespace lockstep::testing {
namespace {

using Strings = std::vector<std::string>;

constexpr const char* kPerceptron =
    "mesh dp_replicate=1 dp_shard=1 cp=1 tp=1\nmicrobatches 1\nblock b x1\n"
    "param w: f32[hidden=8, ffn=16]? block b name w decay 1 init normal 0.02 0\n"
    "param c: f32[ffn=16]? block b name c decay 0 init zeros 0.0 0\n"
    "routine b.forward block b kind forward entry train chunks 1 scratch 0\n  dims batch=1 seq=4 hidden=8 ffn=16\n"
    "  port x value read\n    x: f32[batch, seq, hidden]?\n"
    "  port params params read\n    w: f32[hidden, ffn]? from w\n    c: f32[ffn]? from c\n"
    "  port y value write\n    y: f32[batch, seq, ffn]?\n";

ir::Program passed(const std::string& ops) { return passes::keep_preactivations(ir::parse(kPerceptron + ops)); }

const std::string kProduct = "  up: f32[batch, seq, ffn]? = einsum(x, w)\n", kGelu = "  y = bias_gelu(up, c) {fn='gelu'}\n";

TEST(KeepPreactivations, GeluIsAnOpBehindItsBias) {
    const ir::Program p = passed(kProduct + kGelu);
    EXPECT_EQ(op_lines(p, "b.forward"),
              (Strings{"up: f32[batch, seq, ffn]? = einsum(x, w)", "up.biased: f32[batch, seq, ffn]? = bias(up, c)",
                       "y = gelu(up.biased) {fn='gelu'}"}));
    EXPECT_FALSE(ops::verify(p));
    EXPECT_EQ(ir::parse(ir::print(p)), p);
}

TEST(KeepPreactivations, WhatNoEpilogueServesStays) {
    const auto stays = [](const std::string& ops) { return passed(ops) == ir::parse(kPerceptron + ops); };
    EXPECT_TRUE(stays(kProduct + "  y = bias_gelu(up, c) {fn='gelu_erf'}\n"));
    EXPECT_TRUE(stays(kProduct + "  two: f32[batch, seq, ffn]? = scale(up) {c=2.0}\n  y = bias_gelu(two, c) {fn='gelu'}\n"));
    EXPECT_FALSE(stays(kProduct + kGelu));
}

// ---- Programs for NVIDIA's GPUs.

constexpr int kHopper = 90, kAmpere = 80;

compile::CompileOptions options_of(int compute_capability, const std::set<std::string>& disabled = {}) {
    compile::CompileOptions options;
    options.catalog = kernels::cuda::planned_catalog("a test", compute_capability);
    std::erase_if(options.catalog.entries, [&](const ops::KernelEntry& e) { return disabled.contains(e.op); });
    return options;
}

Settings gpt2(const Settings& more = {}) {
    Settings all = {{"model.name", "gpt2"}, {"model.ffn_dim", "16"}, {"training.mixed_precision_param", "bfloat16"}};
    all.insert(all.end(), more.begin(), more.end());
    return all;
}

ir::Program program_of(const Settings& settings, const compile::CompileOptions& options) {
    const compile::Compiled compiled = compile::compile(small_recipe(settings), options);
    EXPECT_FALSE(check::prove(compiled.of_ranks()));
    return compiled.programs[0];
}
// How often a routine has ops of these kinds.
std::vector<long> counts(const ir::Program& p, const std::string& routine, const Strings& kinds) {
    std::vector<long> out;
    const ir::Routine* r = p.routine(routine);
    if (!r) return out;
    for (const std::string& kind : kinds)
        out.push_back(std::count_if(r->ops.begin(), r->ops.end(), [&](const ir::Op& op) { return op.kind == kind; }));
    return out;
}
const Strings kForward = {"linear", "linear_gelu", "bias", "bias_gelu", "gelu"},
              kBackward = {"matmul_dgelu", "gelu_backward", "bias_gelu_backward", "gelu", "linear_gelu"};
using Counts = std::vector<long>;

TEST(ProductEpilogues, OfGpt2OnHopper) {
    const Settings layouts[] = {gpt2({{"activation_checkpoint.mode", "none"}}),
                                gpt2({{"activation_checkpoint.mode", "none"}, {"parallelism.tensor_parallel_degree", "2"}})};
    for (const Settings& settings : layouts) {
        const ir::Program p = program_of(settings, options_of(kHopper));
        EXPECT_EQ(counts(p, "layer.forward", kForward), (Counts{3, 1, 0, 0, 0}));
        EXPECT_EQ(counts(p, "layer.backward", kBackward), (Counts{1, 0, 0, 1, 0}));
        for (const ir::Op& op : p.routine("layer.forward")->ops) {
            if (op.kind != "linear" && op.kind != "linear_gelu") continue;
            EXPECT_EQ(op.kernel, "cublaslt.matmul");
            EXPECT_GE(op.workspace_bytes, 32 << 20);
        }
        EXPECT_NE(op_line(p, "layer.forward", "up.biased").find("act: bf16"), std::string::npos)
            << "the frame has GELU's operand";
    }
}

TEST(ProductEpilogues, AreWrittenWithoutGelusOperandWhereNothingReadsIt) {
    const ir::Program full = program_of(gpt2({{"activation_checkpoint.mode", "full"}}), options_of(kHopper));
    EXPECT_EQ(counts(full, "layer.forward", kForward), (Counts{3, 1, 0, 0, 0}));
    EXPECT_EQ(counts(full, "layer.backward", kBackward), (Counts{1, 0, 0, 0, 1}));
    const auto results = [&](const char* routine) {
        for (const ir::Op& op : full.routine(routine)->ops) {
            if (op.kind == "linear_gelu") return op.out.size();
        }
        return size_t{0};
    };
    EXPECT_EQ(results("layer.forward"), 1u);
    EXPECT_EQ(results("layer.backward"), 2u);
}

TEST(ProductEpilogues, PartsRunWhereAnEpilogueIsNotServed) {
    const Settings plain = gpt2({{"activation_checkpoint.mode", "none"}});
    const auto with = [&](const compile::CompileOptions& options, const Settings& settings) {
        return program_of(settings, options);
    };
    const ir::Program before_hopper = with(options_of(kAmpere), plain);
    EXPECT_EQ(counts(before_hopper, "layer.forward", kForward), (Counts{3, 0, 0, 1, 0}));
    EXPECT_EQ(counts(before_hopper, "layer.backward", kBackward), (Counts{0, 0, 1, 0, 0}));
    const ir::Program disabled = with(options_of(kHopper, {"linear", "linear_gelu", "matmul_dgelu"}), plain);
    EXPECT_EQ(counts(disabled, "layer.forward", kForward), (Counts{0, 0, 3, 1, 0}));
    EXPECT_EQ(counts(disabled, "layer.backward", kBackward), (Counts{0, 0, 1, 0, 0}));
    const ir::Program one = with(options_of(kHopper, {"matmul_dgelu"}), plain);
    EXPECT_EQ(counts(one, "layer.forward", kForward), (Counts{3, 1, 0, 0, 0}));
    EXPECT_EQ(counts(one, "layer.backward", kBackward), (Counts{0, 1, 0, 1, 0}));
    Settings by_error_function = plain, narrow = plain, by_op = plain;
    by_error_function.emplace_back("model.gelu_erf", "1");
    EXPECT_EQ(counts(with(options_of(kHopper), by_error_function), "layer.forward", {"linear_gelu"}), (Counts{0}));
    // Rows of the auxiliary matrix have a multiple of 8 elements.
    narrow.emplace_back("model.ffn_dim", "12");
    EXPECT_EQ(counts(with(options_of(kHopper), narrow), "layer.forward", kForward), (Counts{4, 0, 0, 0, 1}));
    // The product is saved without its bias.
    by_op[by_op.size() - 1].second = "selective", by_op.emplace_back("activation_checkpoint.selective_ac_option", "op");
    EXPECT_EQ(counts(with(options_of(kHopper), by_op), "layer.forward", {"linear_gelu", "bias_gelu"}), (Counts{0, 1}));
}

TEST(ProductEpilogues, OfBiasesOfQueriesKeysAndValues) {
    const Settings qwen2 = {{"model.qkv_bias", "1"}, {"training.mixed_precision_param", "bfloat16"}};
    Settings apart = qwen2;
    apart.emplace_back("training.pack_products", "false");
    EXPECT_EQ(counts(program_of(qwen2, options_of(kHopper)), "layer.forward", {"linear", "bias"}), (Counts{1, 0}));
    EXPECT_EQ(counts(program_of(apart, options_of(kHopper)), "layer.forward", {"linear", "bias"}), (Counts{3, 0}));
    EXPECT_EQ(counts(program_of(qwen2, options_of(kHopper, {"linear"})), "layer.forward", {"linear", "bias"}), (Counts{0, 1}));
}

// A prefix is for kernels that serve these epilogues, or for others.
TEST(ProductEpilogues, APrefixServesKernelsOfBothKinds) {
    const compile::Config config = compile::config_of(small_recipe(gpt2()));
    for (const auto& [first, second] : {std::pair{kHopper, kAmpere}, std::pair{kAmpere, kHopper}}) {
        const compile::Prefix prefix = compile::compile_prefix(config, options_of(first));
        EXPECT_EQ(compile::or_throw(compile::compile(prefix, config, options_of(second))).programs,
                  compile::compile(config, options_of(second)).programs);
    }
}

// Asynchronous tensor parallelism multiplies in blocks, which have no epilogue: GELU and its bias are one op, as without the
// pass.
TEST(ProductEpilogues, APrefixServesLayoutsOfBothKinds) {
    const Settings tp = gpt2({{"activation_checkpoint.mode", "none"}, {"parallelism.tensor_parallel_degree", "2"}});
    Settings in_blocks = tp;
    in_blocks.emplace_back("parallelism.enable_async_tensor_parallel", "true");
    const compile::CompileOptions options = options_of(kHopper);
    std::set<std::string> kinds;  // a layer is several routines
    for (const ir::Routine& r : program_of(in_blocks, options).routines) {
        for (const ir::Op& op : r.ops) kinds.insert(op.kind);
    }
    for (const char* kind : {"bias_gelu", "bias_gelu_backward"}) EXPECT_TRUE(kinds.contains(kind)) << kind;
    for (const char* kind : {"gelu", "linear_gelu", "matmul_dgelu"}) EXPECT_FALSE(kinds.contains(kind)) << kind;
    for (const auto& [first, second] : {std::pair{tp, in_blocks}, std::pair{in_blocks, tp}}) {
        const compile::Prefix prefix = compile::compile_prefix(compile::config_of(small_recipe(first)), options);
        const compile::Config config = compile::config_of(small_recipe(second));
        EXPECT_EQ(compile::or_throw(compile::compile(prefix, config, options)).programs,
                  compile::compile(config, options).programs);
    }
}

}  // namespace
}  // namespace lockstep::testing
