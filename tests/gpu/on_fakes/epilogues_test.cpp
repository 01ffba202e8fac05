// Training with biases, GELU and its backward in cuBLASLt's epilogues: near the host's kernels, near the parts, with equal bits
// in every legal order of streams.
#include <cublasLt.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/gpu/on_fakes/training.h"

namespace lockstep::testing {
namespace {

constexpr int kSteps = 3;
const std::set<std::string> kFused = {"linear", "linear_gelu", "matmul_dgelu"};

std::set<std::string> kinds_of(const compile::Compiled& compiled) {
    std::set<std::string> out;
    for (const ir::Program& p : compiled.programs) {
        for (const ir::Routine& r : p.routines) {
            for (const ir::Op& op : r.ops) {
                if (kFused.contains(op.kind)) out.insert(op.kind);
            }
        }
    }
    return out;
}

struct Model {
    std::string name;
    Settings settings;
    std::set<std::string> fused;
};
void PrintTo(const Model& m, std::ostream* stream) { *stream << m.name; }

std::vector<Model> models() {
    const std::string param = "training.mixed_precision_param", recompute = "activation_checkpoint.mode",
                      tp = "parallelism.tensor_parallel_degree";
    const auto gpt2 = [](const Settings& more) {
        Settings all = {{"model.name", "gpt2"}, {"model.ffn_dim", "32"}, {"training.global_batch_size", "2"}};
        all.insert(all.end(), more.begin(), more.end());
        return all;
    };
    const Settings qwen2 = {{"model.qkv_bias", "1"}};
    return {
        {"gpt2", gpt2({}), kFused},
        {"gpt2_bfloat16", gpt2({{param, "bfloat16"}}), kFused},
        {"gpt2_float16_dropout", gpt2({{param, "float16"}, {"model.dropout", "0.1"}}), kFused},
        {"gpt2_full_recompute_tp", gpt2({{recompute, "full"}, {tp, "2"}}), kFused},
        {"gpt2_recompute_by_op",
         gpt2({{recompute, "selective"}, {"activation_checkpoint.selective_ac_option", "op"}}),
         {"linear", "matmul_dgelu"}},
        {"gpt2_async_tp", gpt2({{tp, "2"}, {"parallelism.enable_async_tensor_parallel", "true"}}), {}},
        {"gpt2_backward_in_parts",
         gpt2({{"parallelism.pipeline_parallel_degree", "2"},
               {"parallelism.pipeline_parallel_schedule", "ZBVZeroBubble"},
               {"model.n_layers", "4"}}),
         kFused},
        {"qwen2", qwen2, {"linear"}},
        {"qwen2_apart", {{"model.qkv_bias", "1"}, {"training.pack_products", "false"}, {param, "bfloat16"}}, {"linear"}},
    };
}

class GpuEpilogues : public ::testing::TestWithParam<Model> {};

TEST_P(GpuEpilogues, TrainNearTheHostAndNearTheirParts) {
    const Model& m = GetParam();
    const compile::Recipe recipe = small_recipe(m.settings);
    const compile::Compiled fused = compile_for_gpu(recipe), apart = compile_for_gpu(recipe, kFused);
    EXPECT_EQ(kinds_of(fused), m.fused);
    EXPECT_EQ(kinds_of(apart), (std::set<std::string>{}));
    const Outcome of_fused = train(recipe, fused, fake_gpu(1), kSteps), of_parts = train(recipe, apart, fake_gpu(1), kSteps),
                  host = run(recipe, compile_recipe(recipe, Backend::Cpu), kSteps);
    const double bound = m.name.find("float16") != std::string::npos || m.name == "qwen2_apart" ? 3e-2 : 2e-4;
    std::string where;
    EXPECT_LE(difference(host, of_fused, &where), bound) << where;
    EXPECT_LE(difference(of_parts, of_fused, &where), bound) << where;
    for (uint64_t seed = 2; seed <= 3; ++seed)
        EXPECT_TRUE(of_fused == train(recipe, fused, fake_gpu(seed), kSteps)) << "seed " << seed;
}

INSTANTIATE_TEST_SUITE_P(Models, GpuEpilogues, ::testing::ValuesIn(models()), [](const auto& info) { return info.param.name; });

// Found before the first step, not in its middle.
TEST(GpuEpiloguesWithoutAnAlgorithm, AreNamed) {
    const compile::Recipe recipe = small_recipe(models()[1].settings);
    const compile::Compiled compiled = compile_for_gpu(recipe), apart = compile_for_gpu(recipe, {"linear_gelu"});
    const data::SyntheticSource data = synthetic_data(recipe, compiled);
    runtime::Backend gpu = fake_gpu(1);
    fakes::cuda::set_epilogue_without_algorithm(CUBLASLT_EPILOGUE_GELU_AUX_BIAS);
    try {
        runtime::Trainer trainer(compile::config_of(recipe), compiled, data, nullptr, std::move(gpu));
        FAIL() << "it had an algorithm";
    } catch (const UserError& e) {
        EXPECT_EQ(e.id(), "runtime.no_algorithm");
        EXPECT_EQ(e.key(), "runtime.disabled_kernels");
        EXPECT_EQ(
            std::string(e.what()),
            "cuBLASLt has no algorithm for linear_gelu, a product of [8, 8] and [8, 32]: the functionality requested is not "
            "supported: add linear_gelu to runtime.disabled_kernels, and its parts run instead");
    }
    runtime::Backend again = fake_gpu(1);
    fakes::cuda::set_epilogue_without_algorithm(CUBLASLT_EPILOGUE_GELU_AUX_BIAS);
    EXPECT_TRUE(std::isfinite(train(recipe, apart, std::move(again), 1).losses.at(0)));
}

}  // namespace
}  // namespace lockstep::testing
