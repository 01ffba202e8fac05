// Context ranks by cuDNN's attention, in each form and order: near the processor's kernels and our own of a GPU, with equal bits in
// every legal order of streams, and also in parts.
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <string>
#include <vector>

#include "kernels/cuda/attention.h"
#include "tests/gpu/on_fakes/training.h"

namespace lockstep::testing {
namespace {

constexpr int kContextSteps = 2;

compile::Compiled compile_with_cudnn(const compile::Recipe& recipe) {
    static const std::vector<kernels::Registered>& attention = [&]() -> const std::vector<kernels::Registered>& {
        kernels::add_backend(kernels::cuda::attention_kernels());
        return kernels::cuda::attention_kernels();
    }();
    compile::CompileOptions options;
    kernels::add_to(options.catalog, attention);
    return compile_for_gpu(recipe, {}, options);
}

std::map<std::string, int> kernels_of_attention(const compile::Compiled& compiled) {
    std::map<std::string, int> count;
    for (const ir::Program& p : compiled.programs) {
        for (const ir::Routine& r : p.routines) {
            for (const ir::Op& op : r.ops) {
                if (op.kind.starts_with("attention")) ++count[op.kernel];
            }
        }
    }
    return count;
}

struct ContextForm {
    std::string name;
    Settings settings;
    std::vector<std::string> kernels;
};
void PrintTo(const ContextForm& f, std::ostream* stream) { *stream << f.name; }

std::vector<ContextForm> context_forms() {
    const std::string parallel = "parallelism.context_parallel_", degree = parallel + "degree",
                      method = parallel + "rotate_method", balancer = parallel + "load_balancer",
                      heads = parallel + "head_degree", tokens = "training.seq_len", type = "training.mixed_precision_param",
                      recompute = "activation_checkpoint.mode";
    const std::vector<std::string> whole = {"cudnn.attention", "cudnn.attention_block_backward"},
                                   ring = {"cudnn.attention_block", "cudnn.attention_block_backward"};
    return {
        {"gather_head_tail", {{degree, "2"}, {method, "allgather"}, {tokens, "256"}, {type, "bfloat16"}}, whole},
        {"gather_plain", {{degree, "2"}, {method, "allgather"}, {balancer, "none"}, {tokens, "128"}, {type, "float16"}}, whole},
        {"ring_head_tail", {{degree, "3"}, {method, "alltoall"}, {tokens, "384"}, {type, "bfloat16"}}, ring},
        {"ring_plain",
         {{degree, "3"}, {method, "alltoall"}, {balancer, "none"}, {tokens, "192"}, {type, "bfloat16"}, {recompute, "full"}},
         ring},
        {"heads_and_gather_head_tail",
         {{degree, "4"}, {method, "allgather"}, {heads, "2"}, {tokens, "256"}, {type, "bfloat16"}},
         whole},
        {"heads_and_ring_head_tail",
         {{degree, "4"}, {method, "alltoall"}, {heads, "2"}, {tokens, "256"}, {type, "float16"}},
         ring},
        {"heads_and_ring_plain",
         {{degree, "4"}, {method, "alltoall"}, {heads, "2"}, {balancer, "none"}, {tokens, "128"}, {type, "bfloat16"}},
         ring},
        {"heads_in_a_window",
         {{degree, "2"}, {method, "ulysses"}, {tokens, "128"}, {type, "bfloat16"}, {"model.sliding_window", "50"}},
         whole},
    };
}

compile::Recipe recipe_of(Settings settings) {
    settings.insert(settings.end(), {{"model.n_layers", "1"}, {"model.head_dim", "8"}, {"training.loss_chunk_tokens", "64"}});
    return small_recipe(settings);
}

class GpuContextAttention : public ::testing::TestWithParam<ContextForm> {
protected:
    void TearDown() override { fakes::cuda::set_most_scores_of_attention(std::numeric_limits<int64_t>::max()); }
};

TEST_P(GpuContextAttention, OfCudnnIsNearThatOfOtherKernelsWithTheSameBitsInEverySchedule) {
    const compile::Recipe recipe = recipe_of(GetParam().settings);
    const compile::Compiled by_cudnn = compile_with_cudnn(recipe);
    std::vector<std::string> kernels;
    for (const auto& [kernel, count] : kernels_of_attention(by_cudnn)) kernels.push_back(kernel);
    EXPECT_EQ(kernels, GetParam().kernels);

    const Outcome first = train(recipe, by_cudnn, fake_gpu(1), kContextSteps);
    std::string where;
    EXPECT_LE(difference(run(recipe, compile_recipe(recipe, Backend::Cpu), kContextSteps), first, &where), 3e-2) << where;
    EXPECT_LE(difference(train(recipe, compile_for_gpu(recipe), fake_gpu(1), kContextSteps), first, &where), 3e-2) << where;
    for (uint64_t seed = 2; seed <= 4; ++seed)
        EXPECT_TRUE(first == train(recipe, by_cudnn, fake_gpu(seed), kContextSteps)) << "seed " << seed;
}

INSTANTIATE_TEST_SUITE_P(Forms, GpuContextAttention, ::testing::ValuesIn(context_forms()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lockstep::testing
