// Training with attention that reads and writes packed rows: the bits of training with copies, in every legal order of streams.
#include <gtest/gtest.h>

#include "tests/gpu/on_fakes/training.h"

namespace lockstep::testing {
namespace {

constexpr int kPackedSteps = 3;

int64_t count_of(const compile::Compiled& compiled, const std::string& kind) {
    int64_t count = 0;
    for (const ir::Program& p : compiled.programs) {
        for (const ir::Routine& r : p.routines) {
            for (const ir::Op& op : r.ops) count += op.kind == kind;
        }
    }
    return count;
}

struct PackedModel {
    std::string name;
    Settings settings;
};
void PrintTo(const PackedModel& m, std::ostream* stream) { *stream << m.name; }

std::vector<PackedModel> packed_models() {
    const std::string param = "training.mixed_precision_param", recompute = "activation_checkpoint.mode",
                      tp = "parallelism.tensor_parallel_degree";
    return {
        {"float32", {}},
        {"bfloat16", {{param, "bfloat16"}}},
        {"float16_window", {{param, "float16"}, {"model.sliding_window", "8"}}},
        {"documents", {{param, "bfloat16"}, {"training.document_mask", "true"}}},
        {"biases_full_recompute", {{param, "bfloat16"}, {"model.qkv_bias", "1"}, {recompute, "full"}}},
        {"recompute_by_op", {{param, "bfloat16"}, {recompute, "selective"}, {"activation_checkpoint.selective_ac_option", "op"}}},
        {"tp", {{tp, "2"}}},
        {"async_tp_bfloat16", {{param, "bfloat16"}, {tp, "2"}, {"parallelism.enable_async_tensor_parallel", "true"}}},
        {"backward_in_parts",
         {{"parallelism.pipeline_parallel_degree", "2"},
          {"parallelism.pipeline_parallel_schedule", "ZBVZeroBubble"},
          {"model.n_layers", "4"}}},
    };
}

class GpuPackedAttention : public ::testing::TestWithParam<PackedModel> {};

TEST_P(GpuPackedAttention, TrainsAsWithCopies) {
    const compile::Recipe recipe = small_recipe(GetParam().settings);
    compile::CompileOptions copies;
    copies.skip = {"pack_attention"};
    const compile::Compiled packed = compile_for_gpu(recipe), apart = compile_for_gpu(recipe, {}, copies);
    EXPECT_EQ(count_of(packed, "split_qkv") + count_of(packed, "join_qkv"), 0);
    EXPECT_GT(count_of(apart, "join_qkv"), 0);
    const Outcome of_packed = train(recipe, packed, fake_gpu(1), kPackedSteps);
    std::string where;
    EXPECT_EQ(difference(train(recipe, apart, fake_gpu(1), kPackedSteps), of_packed, &where), 0) << where;
    EXPECT_TRUE(of_packed == train(recipe, packed, fake_gpu(2), kPackedSteps)) << "another order";
}

INSTANTIATE_TEST_SUITE_P(Models, GpuPackedAttention, ::testing::ValuesIn(packed_models()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lockstep::testing
