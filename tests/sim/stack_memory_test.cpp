// What other software than Lockstep allocates, against the formulas of the papers that count it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>

#include "compile/compile.h"
#include "planning/machine.h"
#include "planning/plan.h"
#include "sim/stack_memory.h"
#include "tests/paths.h"

namespace lockstep {
namespace {

constexpr double kSeq = 512, kBatch = 2, kHidden = 1024, kHeads = 8, kVocab = 4096;

// By pipeline rank, of GPT-2 with these numbers under `keys`.
std::vector<sim::StackBytes> bytes_of(int layers, const std::string& keys, const std::string& stack = "megatron_2022",
                                      const std::function<void(sim::StackMemory&)>& change = {}) {
    const std::string text = fmt::format(
        "[model]\nname = \"gpt2\"\nflavor = \"124M\"\ndim = 1024\nn_layers = {}\nn_heads = 8\nffn_dim = 4096\nvocab_size = 4096\n"
        "[training]\nseq_len = 512\nmixed_precision_param = \"bfloat16\"\ndataset = \"synthetic\"\n{}",
        layers, keys);
    const compile::Config config = compile::config_of(compile::Recipe::from_text(text, "r.toml"));
    const std::string clusters = LOCKSTEP_SOURCE_DIR "/clusters/";
    sim::Cluster c = sim::read_cluster(clusters + "a100_80gb_8nic.toml", "--cluster", clusters + "stacks/" + stack + ".toml");
    if (change) change(c.stack.memory);
    return planning::make_plan(config, planning::described_machine(config, c, "c.toml")).needed.of_stack;
}

std::string keys_of(const std::string& training, const std::string& parallelism, const std::string& recompute = "none") {
    return training + "[parallelism]\n" + parallelism + "[activation_checkpoint]\nmode = \"" + recompute + "\"\n";
}

// What one more layer adds.
double of_a_layer(const std::string& keys, const std::string& stack = "megatron_2022") {
    const auto activations = [&](int layers) { return bytes_of(layers, keys, stack)[0].activations; };
    return (activations(6) - activations(2)) / 4;
}

constexpr double kRows = kSeq * kBatch;

// Korthikanti et al., arXiv 2205.05198, equations 1, 2, 4 and 6: s b h (34 + 5 a s / h) and its forms under tensor parallelism.
TEST(StackMemory, AGptLayerKeepsWhatKorthikantiCounts) {
    const double scores = 5 * kHeads * kSeq / kHidden, sbh = kRows * kHidden;
    // Beside the paper's: a float32 sum for each row of attention.
    const auto expect = [&](double got, double per_sbh, double heads) {
        EXPECT_NEAR(got, sbh * per_sbh + 4 * kRows * heads, 1e-3 * got);
    };
    expect(of_a_layer(keys_of("local_batch_size = 2\n", "")), 34 + scores, kHeads);
    const std::string t4 = "tensor_parallel_degree = 4\n";
    expect(of_a_layer(keys_of("local_batch_size = 2\n", t4 + "sequence_parallel = false\n")), 10 + 24 / 4.0 + scores / 4,
           kHeads / 4);
    expect(of_a_layer(keys_of("local_batch_size = 2\n", t4)), (34 + scores) / 4, kHeads / 4);
    expect(of_a_layer(keys_of("local_batch_size = 2\n", ""), "megatron_2022_selective"), 34, kHeads);
    EXPECT_NEAR(of_a_layer(keys_of("local_batch_size = 2\n", "", "full")), 2 * sbh, 1e-3 * sbh);
    EXPECT_NEAR(of_a_layer(keys_of("local_batch_size = 2\n", t4, "full")), 2 * sbh / 4, 1e-3 * sbh);
}

// The first of p stages holds p microbatches of 1F1B; interleaving makes them p (1 + (p - 1) / (p v)).
TEST(StackMemory, PipelinesHoldTheMicrobatchesOfTheirSchedule) {
    const std::string batch = "global_batch_size = 32\n";
    const auto with = [&](const std::string& schedule, const std::string& more = "") {
        return keys_of(batch,
                       "pipeline_parallel_degree = 4\npipeline_parallel_microbatch_size = 2\npipeline_parallel_schedule = \"" +
                           schedule + "\"\npipeline_parallel_first_stage_less_layers = 0\n" +
                           "pipeline_parallel_last_stage_less_layers = 0\n" + more);
    };
    const double layer = of_a_layer(keys_of("local_batch_size = 2\n", ""));
    const std::vector<sim::StackBytes> one = bytes_of(8, with("1F1B"));
    ASSERT_EQ(one.size(), 4u);
    for (size_t k = 0; k < 3; ++k) EXPECT_NEAR(one[k].activations, 2 * static_cast<double>(4 - k) * layer, 0.01 * layer) << k;
    const std::vector<sim::StackBytes> gpipe = bytes_of(8, with("GPipe"));
    EXPECT_NEAR(gpipe[0].activations, 2 * 16 * layer, 0.01 * layer);
    const std::vector<sim::StackBytes> interleaved =
        bytes_of(8, with("Interleaved1F1B", "pipeline_parallel_layers_per_stage = 1\n"));
    EXPECT_NEAR(interleaved[0].activations, 2 * 4 * (1 + 3 / 8.0) * layer, 0.01 * layer);
    // Zero bubble keeps less between the two parts of a backward than before them, and more in all than 1F1B does.
    const std::vector<sim::StackBytes> zero_bubble = bytes_of(8, with("ZB-H1"));
    EXPECT_GE(zero_bubble[0].activations, one[0].activations);
    EXPECT_LT(zero_bubble[0].activations, 2 * 5 * layer);
}

// Parameters and gradients of 16 bits with float32 weights and moments: 18 bytes a parameter with float32 gradients; ZeRO-1
// splits twelve of them, ZeRO-3 all sixteen (Rajbhandari et al., arXiv 1910.02054, figure 1).
TEST(StackMemory, StatesAreThoseOfThePartition) {
    const double layer = 12 * kHidden * kHidden + 13 * kHidden;
    const auto states = [&](const std::string& keys, const std::string& stack,
                            const std::function<void(sim::StackMemory&)>& change = {}) {
        return (bytes_of(6, keys, stack, change)[0].states - bytes_of(2, keys, stack, change)[0].states) / 4 / layer;
    };
    const std::string four = "data_parallel_shard_degree = 4\n", batch = "local_batch_size = 2\n";
    const auto zero = [](const char* stage) { return std::string("[partition]\npreset = \"") + stage + "\"\n"; };
    EXPECT_NEAR(states(keys_of(batch, ""), "megatron_2022"), 18, 0.01);
    EXPECT_NEAR(states(keys_of(batch, four) + zero("zero1"), "megatron_2022"), 2 + 4 + 12 / 4.0, 0.01);
    EXPECT_NEAR(states(keys_of(batch, four) + zero("zero3"), "torchtitan_compiled"), 16 / 4.0, 0.01);
    EXPECT_NEAR(states(keys_of(batch, four) + zero("none"), "megatron_deepspeed_blocking"), 2 + 2 + 4 + 12 / 4.0, 0.01);
}

// DeepSpeed's optimizer for bfloat16 splits the states and keeps the sums of gradients whole.
TEST(StackMemory, SumsAreSplitOrWhole) {
    const double layer = 12 * kHidden * kHidden + 13 * kHidden;
    const std::string keys =
        keys_of("local_batch_size = 2\n", "data_parallel_shard_degree = 4\n") + "[partition]\npreset = \"zero1\"\n";
    const auto states = [&](bool whole) {
        const auto change = [&](sim::StackMemory& m) { m.sum_bytes = 4, m.whole_sums = whole; };
        return (bytes_of(6, keys, "megatron_2022", change)[0].states - bytes_of(2, keys, "megatron_2022", change)[0].states) / 4 /
               layer;
    };
    EXPECT_NEAR(states(false), 2 + 4 + (4 + 12) / 4.0, 0.01);
    EXPECT_NEAR(states(true), 2 + 4 + 4 + 12 / 4.0, 0.01);
}

// Blocks that asynchronous tensor parallelism joins are gathered again, as one gathered operand is.
TEST(StackMemory, AsynchronousTensorParallelismKeepsWhatThePlainFormKeeps) {
    for (const char* keeps : {"torchtitan_compiled", "nanotron"}) {
        const auto layer = [&](const char* async) {
            return of_a_layer(keys_of("local_batch_size = 2\n",
                                      fmt::format("tensor_parallel_degree = 4\nenable_async_tensor_parallel = {}\n", async)),
                              keeps);
        };
        EXPECT_NEAR(layer("true"), layer("false"), 1e-3 * layer("false")) << keeps;
    }
}

// Programs of the GPU module have a product, its bias and GELU in one op.
TEST(StackMemory, FusedProductsKeepWhatTheirPartsKeep) {
    const auto activations = [](int layers, bool fused) {
        const std::string text = fmt::format(
            "[model]\nname = \"gpt2\"\nflavor = \"124M\"\ndim = 1024\nn_layers = {}\nn_heads = 8\nffn_dim = 4096\n"
            "[training]\nseq_len = 512\nmixed_precision_param = \"bfloat16\"\ndataset = \"synthetic\"\nlocal_batch_size = 2\n",
            layers);
        const compile::Config config = compile::config_of(compile::Recipe::from_text(text, "r.toml"));
        const std::string clusters = LOCKSTEP_SOURCE_DIR "/clusters/", stack = clusters + "stacks/megatron_2022.toml";
        const sim::Cluster with = sim::read_cluster(clusters + "h100.toml", "--cluster", stack),
                           without = sim::read_cluster(clusters + "h100.toml", "--cluster");
        const planning::Plan plan = planning::make_plan(config, planning::described_machine(config, fused ? without : with, "c"));
        if (fused) {
            bool found = false;
            for (const ir::Routine& r : plan.compiled.programs[0].routines) {
                for (const ir::Op& op : r.ops) found |= op.kind == ir::kLinearGelu;
            }
            EXPECT_TRUE(found);
        }
        return sim::stack_bytes(plan.compiled.programs[0], with.stack).activations;
    };
    const auto layer = [&](bool fused) { return (activations(6, fused) - activations(2, fused)) / 4; };
    EXPECT_NEAR(layer(true), layer(false), 0.01 * layer(false));
}

// A byte an element: of the dropout behind the embedding.
TEST(StackMemory, APlainDropoutKeepsItsMask) {
    const auto activations = [](double embedding) {
        const std::string text = fmt::format(
            "[model]\nname = \"gpt2\"\nflavor = \"124M\"\ndim = 1024\nn_layers = 2\nn_heads = 8\nffn_dim = 4096\n"
            "embd_pdrop = {}\n[training]\nseq_len = 512\nmixed_precision_param = \"bfloat16\"\ndataset = \"synthetic\"\n"
            "local_batch_size = 2\n",
            embedding);
        const compile::Config config = compile::config_of(compile::Recipe::from_text(text, "r.toml"));
        const std::string clusters = LOCKSTEP_SOURCE_DIR "/clusters/";
        const sim::Cluster c = sim::read_cluster(clusters + "a100_80gb_8nic.toml", "--cluster",
                                                 clusters + "stacks/megatron_deepspeed_blocking.toml");
        return planning::make_plan(config, planning::described_machine(config, c, "c")).needed.of_stack[0].activations;
    };
    EXPECT_NEAR(activations(0.1) - activations(0.0), kRows * kHidden, 1);
}

TEST(StackMemory, LogitsStandOnTheLastStageAlone) {
    const std::string pipeline =
        keys_of("global_batch_size = 32\n", "pipeline_parallel_degree = 2\npipeline_parallel_microbatch_size = 2\n");
    const auto without = [](sim::StackMemory& m) { m.logit_bytes = 0; };
    const std::vector<sim::StackBytes> all = bytes_of(4, pipeline), none = bytes_of(4, pipeline, "megatron_2022", without);
    EXPECT_EQ(all[0].activations, none[0].activations);
    // They stand until the head's backward. Without them, the rank is fullest elsewhere.
    const double head = 10 * kRows * kVocab + 2 * 2 * kRows * kHidden;
    EXPECT_NEAR(all[1].activations, 2 * of_a_layer(keys_of("local_batch_size = 2\n", "")) + head, 0.02 * all[1].activations);
    EXPECT_LT(none[1].activations + none[1].working, all[1].activations);
}

TEST(StackMemory, WhatIsComputedAgainStandsOnce) {
    const std::string keys = keys_of("local_batch_size = 2\n", "", "full");
    const double layer = of_a_layer(keys_of("local_batch_size = 2\n", ""));
    const auto without = [](sim::StackMemory& m) { m.logit_bytes = 0; };
    const double working = bytes_of(6, keys, "megatron_2022", without)[0].working;
    EXPECT_GT(working, layer - 2 * kRows * kHidden);
    EXPECT_LT(working, 1.6 * layer);
}

TEST(StackMemory, SplitParametersAreWholeForAWhile) {
    const double layer = 12 * kHidden * kHidden + 13 * kHidden;
    const std::string keys =
        keys_of("local_batch_size = 2\n", "data_parallel_shard_degree = 4\n") + "[partition]\npreset = \"zero3\"\n";
    const auto gathered = [&](double layers, double at_least) {
        return bytes_of(4, keys, "torchtitan_compiled",
                        [&](sim::StackMemory& m) { m.gathered_layers = layers, m.gathered_bytes = at_least; })[0]
            .gathered;
    };
    EXPECT_NEAR(gathered(3, 0) - gathered(2, 0), 2 * layer, 0.01 * layer);
    EXPECT_NEAR(gathered(2, 1e9) - 1e9, gathered(3, 1e9) - 1e9, 1);
    EXPECT_EQ(bytes_of(4, keys_of("local_batch_size = 2\n", ""), "torchtitan_compiled")[0].gathered, 0);
}

}  // namespace
}  // namespace lockstep
