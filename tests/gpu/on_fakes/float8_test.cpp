// Training with products in float8 on the device of a GPU: near the host's kernels, with equal bits in every legal order of streams.
// Which products cuBLASLt has.
#include <gtest/gtest.h>

#include <map>

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
        {"rowwise", {{recipe, "rowwise"}}, false},
        {"rowwise_with_gw_hp", {{recipe, "rowwise_with_gw_hp"}, {shard, "2"}}, false},
        {"blockwise",
         {{recipe, "blockwise"},
          {"quantize.linear.float8.filter_fqns", "attention"},
          {"model.dim", "128"},
          {"model.ffn_dim", "256"},
          {"training.seq_len", "128"},
          {"training.global_batch_size", "2"}},
         false},
        {"mx_floor", in_powers("mxfp8_cublas", {}), false},
        {"mx_rceil", in_powers("mxfp8_cublas_rceil", {{tp, "2"}}), false},
    };
}

class GpuFloat8 : public ::testing::TestWithParam<Float8Model> {};

TEST_P(GpuFloat8, TrainsNearTheHostWithTheSameBitsInEverySchedule) {
    const Float8Model& m = GetParam();
    const compile::Recipe recipe = small_recipe(float8_settings(m));
    const compile::Compiled on_gpu = compile_for_gpu(recipe);
    std::map<std::string, int> kernels = float8_kernels(on_gpu);
    EXPECT_EQ(kernels["cublaslt.scaled_matmul"] > 0, m.is_scaled);
    EXPECT_EQ(kernels["gpu.from_float8"] + kernels["gpu.from_codes"] > 0, !m.is_scaled);
    EXPECT_GT(kernels["gpu.to_float8"] + kernels["gpu.to_blocks"], 0);
    EXPECT_GT(kernels["gpu.amax"] + kernels["gpu.member_amax"] + kernels["gpu.to_blocks"], 0);
    const Outcome host = run(recipe, compile_recipe(recipe, Backend::Cpu), kFloat8Steps),
                  first = train(recipe, on_gpu, fake_gpu(1), kFloat8Steps);
    std::string where;
    EXPECT_LE(difference(host, first, &where), 3e-2) << where;
    for (uint64_t seed = 2; seed <= 3; ++seed)
        EXPECT_TRUE(first == train(recipe, on_gpu, fake_gpu(seed), kFloat8Steps)) << "seed " << seed;
}

INSTANTIATE_TEST_SUITE_P(Models, GpuFloat8, ::testing::ValuesIn(float8_models()),
                         [](const auto& info) { return info.param.name; });

// The parts of such a product are near it.
TEST(GpuFloat8Parts, TrainNearTheWhole) {
    const compile::Recipe recipe = small_recipe(float8_settings(float8_models()[0]));
    const compile::Compiled whole = compile_for_gpu(recipe), parts = compile_for_gpu(recipe, {"scaled_einsum"});
    EXPECT_EQ(float8_kernels(parts)["cublaslt.scaled_matmul"], 0);
    std::string where;
    EXPECT_LE(
        difference(train(recipe, whole, fake_gpu(1), kFloat8Steps), train(recipe, parts, fake_gpu(1), kFloat8Steps), &where),
        3e-2)
        << where;
}

}  // namespace
}  // namespace lockstep::testing
