// A step on the CPU's kernels, with tokens enough for every fused one, against the reference backend, which has none of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "kernels/cpu/matmul.h"
#include "tests/base/plain.h"
#include "tests/compile/recipes.h"
#include "tests/equivalence/draw.h"
#include "tests/equivalence/run.h"

namespace lockstep::testing {
namespace {

std::set<std::string> kinds_of(const compile::Compiled& compiled) {
    std::set<std::string> kinds;
    for (const ir::Routine& r : compiled.programs[0].routines) {
        for (const ir::Op& op : r.ops) kinds.insert(op.kind);
    }
    return kinds;
}

compile::Recipe recipe(const std::string& flavor, const std::string& tensor_parallel) {
    compile::Recipe r = plain();
    const std::pair<const char*, std::string> settings[] = {{"model.name", flavor},
                                                            {"model.dim", "24"},
                                                            {"model.n_layers", "2"},
                                                            {"model.n_heads", "4"},
                                                            {"model.ffn_dim", "40"},
                                                            {"model.vocab_size", "50"},
                                                            {"training.seq_len", "128"},
                                                            {"training.local_batch_size", "2"},
                                                            {"training.steps", "3"},
                                                            {"optimizer.lr", "5e-3"},
                                                            {"lr_scheduler.warmup_steps", "0"},
                                                            {"parallelism.tensor_parallel_degree", tensor_parallel}};
    for (const auto& [key, value] : settings) r.set(key, value);
    return r;
}

TEST(FusedKernels, AStepIsThatOfTheOpsApart) {
    for (const char* tp : {"1", "2"}) {
        const compile::Recipe r = recipe("llama3", tp);
        const std::set<std::string> kinds = kinds_of(compile_recipe(r, Backend::Cpu));
        for (const char* fused : {"qkv_rope", "rmsnorm_backward_add", "swiglu"}) EXPECT_TRUE(kinds.contains(fused)) << fused;
        const bool is_one = r.integer("parallelism.tensor_parallel_degree") == 1;  // then products add the residual
        EXPECT_EQ(kinds.contains("addmm"), is_one);
        EXPECT_EQ(kinds.contains("add_rmsnorm"), !is_one);
        EXPECT_FALSE(kinds_of(compile_recipe(r, Backend::Reference)).contains("qkv_rope"));
        EXPECT_LT(difference(run(r, Backend::Reference, 3), run(r, Backend::Cpu, 3)), 1e-4);
    }
}

TEST(FusedKernels, OfGpt2Too) {
    compile::Recipe r = recipe("gpt2", "1");
    r.set("model.dropout", "0.0");
    r.set("optimizer.eps", "1e-3");  // the gradient of a bias of keys is rounding alone
    const std::set<std::string> kinds = kinds_of(compile_recipe(r, Backend::Cpu));
    for (const char* fused : {"layernorm_backward_add", "bias_gelu", "bias_dropout_add"})
        EXPECT_TRUE(kinds.contains(fused)) << fused;
    EXPECT_LT(difference(run(r, Backend::Reference, 3), run(r, Backend::Cpu, 3)), 1e-4);
}

// What has no fast kernel.
std::set<std::string> plain_loops(const compile::Compiled& compiled) {
    std::set<std::string> kinds;
    for (const ir::Routine& r : compiled.programs[0].routines) {
        for (const ir::Op& op : r.ops) {
            if (op.kernel.starts_with("reference.")) kinds.insert(op.kind);
        }
    }
    return kinds;
}

// A residual stream, weights of norms, or both, in float32 beside bfloat16.
using Wide = std::pair<const char*, const char*>;
constexpr Wide kStream = {"training.fp32_residual_connection", "true"}, kNorms = {"training.mixed_precision_norm", "float32"};
class WideBesideBfloat16 : public ::testing::TestWithParam<std::vector<Wide>> {};
INSTANTIATE_TEST_SUITE_P(FusedKernels, WideBesideBfloat16,
                         ::testing::Values(std::vector<Wide>{kStream}, std::vector<Wide>{kNorms},
                                           std::vector<Wide>{kStream, kNorms}),
                         [](const auto& info) {
                             return std::string(info.param.size() == 2 ? "Both" : info.param[0] == kStream ? "Stream" : "Norms");
                         });

TEST_P(WideBesideBfloat16, IsServed) {
    for (const char* model : {"llama3", "gpt2"}) {
        compile::Recipe r = recipe(model, "1");
        r.set("training.global_batch_size", "2");
        r.set("training.mixed_precision_param", "bfloat16");
        r.set("optimizer.eps", "1e-3");
        const std::set<std::string> narrow = plain_loops(compile_recipe(r, Backend::Cpu));
        for (const auto& [key, value] : GetParam()) r.set(key, value);
        const compile::Compiled compiled = compile_recipe(r, Backend::Cpu);
        EXPECT_EQ(plain_loops(compiled), narrow) << model;
        const std::set<std::string> kinds = kinds_of(compiled);
        EXPECT_EQ(kinds.contains("rmsnorm_backward_add"), r.text("model.name") == "llama3");
        EXPECT_EQ(kinds.contains("add_rmsnorm"), r.text("model.name") == "llama3" && !r.flag(kStream.first));
        // Its products are of floats: apart they are faster where there are faster ones.
        EXPECT_EQ(kinds.contains("qkv_rope"), r.text("model.name") == "llama3" && !kernels::cpu::has_fast_bf16());
        for (const char* fused : {"layernorm_backward_add", "bias_dropout_add"})
            EXPECT_EQ(kinds.contains(fused), r.text("model.name") == "gpt2") << fused;
        EXPECT_EQ(kinds.contains("addmm"), r.flag(kStream.first)) << model;
        const Outcome plain = run(r, Backend::Reference, 3);
        EXPECT_LE(difference(plain, run(r, Backend::Cpu, 3)), tolerance(r, plain, Dtype::F32)) << model;
    }
}

}  // namespace
}  // namespace lockstep::testing
