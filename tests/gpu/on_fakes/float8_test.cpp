// Training with products in float8 on the device of a GPU: near the host's kernels, with equal bits in every legal order of streams.
// Which products cuBLASLt has.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "tests/gpu/on_fakes/training.h"

namespace lockstep::testing {
namespace {

constexpr int kFloat8Steps = 2;

// How many ops have each kernel, of those that float8 adds.
std::map<std::string, int> float8_kernels(const compile::Compiled& compiled) {
    std::map<std::string, int> out;
    for (const ir::Program& p : compiled.programs) {
        for (const ir::Routine& r : p.routines) {
            for (const ir::Op& op : r.ops) ++out[op.kernel];
        }
    }
    return out;
}

struct Float8Model {
    std::string name;
    Settings more;
    bool is_scaled = true;  // its products are cuBLASLt's; else they are made of parts
    int compute_capability = 90;
};
void PrintTo(const Float8Model& m, std::ostream* stream) { *stream << m.name; }

Settings float8_settings(const Float8Model& m) {
    Settings all = {{"model.converters", "quantize.linear.float8"},
                    {"training.mixed_precision_param", "bfloat16"},
                    {"model.dim", "32"},
                    {"model.head_dim", "16"},
                    {"model.ffn_dim", "48"},
                    {"training.seq_len", "16"},
                    {"training.global_batch_size", "4"}};
    all.insert(all.end(), m.more.begin(), m.more.end());
    return all;
}

std::vector<Float8Model> float8_models() {
    const std::string gather = "quantize.linear.float8.enable_fsdp_float8_all_gather",
                      shard = "parallelism.data_parallel_shard_degree", tp = "parallelism.tensor_parallel_degree",
                      preset = "partition.preset", recipe = "quantize.linear.float8.recipe_name";
    const auto in_powers = [](const char* rounding, Settings more) {
        more.insert(more.end(), {{"model.converters", "quantize.linear.mx"},
                                 {"quantize.linear.mx.recipe_name", rounding},
                                 {"model.head_dim", "32"},
                                 {"model.ffn_dim", "64"},
                                 {"training.seq_len", "64"}});
        return more;
    };
    return {
        {"one_rank", {}},
        {"float16", {{"training.mixed_precision_param", "float16"}}},
        {"products_apart", {{"training.pack_products", "false"}}},
        {"gpt2", {{"model.name", "gpt2"}}},
        {"zero3", {{shard, "2"}}},
        {"zero3_gathers_codes", {{shard, "2"}, {gather, "true"}}},
        {"zero1_keeps_codes", {{shard, "2"}, {gather, "true"}, {preset, "zero1"}}},
        {"zero3_tp_gathers_codes",
         {{shard, "2"},
          {tp, "2"},
          {gather, "true"},
          {"training.seq_len", "32"},
          {"model.ffn_dim", "64"},
          {"activation_checkpoint.mode", "full"}}},
        {"several_groups", {{"training.local_batch_size", "2"}, {"quantize.scale_sequences", "1"}}, false},
        {"odd_tokens", {{"training.seq_len", "8"}}, false},
        {"rowwise", {{recipe, "rowwise"}}},
        {"rowwise_tp", {{recipe, "rowwise"}, {tp, "2"}, {"training.seq_len", "32"}, {"model.ffn_dim", "64"}}},
        {"rowwise_several_groups",
         {{recipe, "rowwise"}, {"training.local_batch_size", "2"}, {"quantize.scale_sequences", "1"}},
         false},
        {"rowwise_with_gw_hp", {{recipe, "rowwise_with_gw_hp"}, {shard, "2"}}},
        {"blockwise",
         {{recipe, "blockwise"},
          {"quantize.linear.float8.filter_fqns", "attention"},
          {"model.dim", "128"},
          {"model.ffn_dim", "256"},
          {"training.seq_len", "128"},
          {"training.global_batch_size", "2"}}},
        {"mx_floor_in_parts", in_powers("mxfp8_cublas", {}), false},
        {"mx_floor", in_powers("mxfp8_cublas", {}), true, 100},
        {"mx_rceil", in_powers("mxfp8_cublas_rceil", {{tp, "2"}}), true, 100},
    };
}

runtime::Backend fake_gpu_of(const Float8Model& m, uint64_t seed) {
    runtime::Backend gpu = fake_gpu(seed);
    fakes::cuda::DeviceProperties properties;
    properties.major = m.compute_capability / 10, properties.minor = m.compute_capability % 10;
    fakes::cuda::set_device_properties(properties);
    return gpu;
}

class GpuFloat8 : public ::testing::TestWithParam<Float8Model> {};

TEST_P(GpuFloat8, TrainsNearTheHostWithTheSameBitsInEverySchedule) {
    const Float8Model& m = GetParam();
    const compile::Recipe recipe = small_recipe(float8_settings(m));
    const compile::Compiled on_gpu = compile_for_gpu(recipe, {}, {}, m.compute_capability);
    std::map<std::string, int> kernels = float8_kernels(on_gpu);
    const bool has_parts = kernels["gpu.from_float8"] + kernels["gpu.from_codes"] > 0;
    const bool sums_tokens_in_parts = m.name == "rowwise_several_groups";  // a scale for each group
    EXPECT_EQ(kernels["cublaslt.scaled_matmul"] > 0, m.is_scaled || sums_tokens_in_parts);
    EXPECT_EQ(has_parts, !m.is_scaled);
    EXPECT_GT(kernels["gpu.to_float8"] + kernels["gpu.to_blocks"], 0);
    EXPECT_GT(kernels["gpu.amax"] + kernels["gpu.member_amax"] + kernels["gpu.to_blocks"], 0);
    const Outcome host = run(recipe, compile_recipe(recipe, Backend::Cpu), kFloat8Steps),
                  first = train(recipe, on_gpu, fake_gpu_of(m, 1), kFloat8Steps);
    std::string where;
    EXPECT_LE(difference(host, first, &where), 3e-2) << where;
    for (uint64_t seed = 2; seed <= 3; ++seed)
        EXPECT_TRUE(first == train(recipe, on_gpu, fake_gpu_of(m, seed), kFloat8Steps)) << "seed " << seed;
}

INSTANTIATE_TEST_SUITE_P(Models, GpuFloat8, ::testing::ValuesIn(float8_models()),
                         [](const auto& info) { return info.param.name; });

// The parts of such a product are near it, in every recipe.
TEST(GpuFloat8Parts, TrainNearTheWhole) {
    for (const Float8Model& m : float8_models()) {
        const std::set<std::string> of_recipes = {"one_rank", "rowwise", "rowwise_with_gw_hp", "blockwise", "mx_floor"};
        if (!of_recipes.contains(m.name)) continue;
        SCOPED_TRACE(m.name);
        const compile::Recipe recipe = small_recipe(float8_settings(m));
        const compile::Compiled whole = compile_for_gpu(recipe, {}, {}, m.compute_capability),
                                parts = compile_for_gpu(recipe, {"scaled_einsum"}, {}, m.compute_capability);
        EXPECT_EQ(float8_kernels(parts)["cublaslt.scaled_matmul"], 0);
        std::string where;
        EXPECT_LE(difference(train(recipe, whole, fake_gpu_of(m, 1), kFloat8Steps),
                             train(recipe, parts, fake_gpu_of(m, 1), kFloat8Steps), &where),
                  3e-2)
            << where;
    }
}

}  // namespace
}  // namespace lockstep::testing
