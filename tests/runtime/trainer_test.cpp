// Properties of a step that no comparison of layouts shows: it counts as a whole or not at all, it allocates nothing, and it does
// not depend on threads' timing.
#include <gtest/gtest.h>

#include <cmath>

#include "data/synthetic_source.h"
#include "kernels/kernel.h"
#include "runtime/trainer.h"
#include "tests/base/plain.h"
#include "tests/equivalence/run.h"
#include "tests/runtime/allocations.h"

namespace lockstep::testing {
namespace {

compile::Recipe four_sequences(const std::string& more = "") {
    return plain(compile::Recipe::from_text(R"(
[model]
dim = 32
n_layers = 2
n_heads = 4
n_kv_heads = 2
ffn_dim = 48
vocab_size = 61
[training]
seq_len = 16
local_batch_size = 1
global_batch_size = 4
[lr_scheduler]
warmup_steps = 0
)" + more,
                                            "test"));
}

data::SyntheticSource source() { return data::SyntheticSource({1, 61, 16, 0.0, 0}); }

TEST(Step, ANonFiniteStepChangesNoState) {
    const compile::Recipe r = four_sequences("[parallelism]\ndata_parallel_shard_degree = 2\n");
    const compile::Compiled compiled = compile_recipe(r, Backend::Cpu);
    const data::SyntheticSource data = source();
    runtime::Trainer trainer(compile::config_of(r), compiled, data);
    ASSERT_TRUE(trainer.step().committed);
    // One weight becomes infinite, on whichever ranks hold it.
    runtime::GlobalTensors before = trainer.state(runtime::saved_as("{}"));
    trainer.fill_weights([&](const ir::Parameter& p, int64_t instance) {
        const runtime::Values value = values_in(before)(p, instance);
        return [value, is_hit = p.key == "w1" && instance == 1](int64_t i) { return is_hit && i == 5 ? INFINITY : value(i); };
    });
    before = trainer.state(runtime::saved_as("{}"));
    const runtime::GlobalTensors moments = trainer.state(runtime::saved_as("exp_avg.{}")),
                                 squares = trainer.state(runtime::saved_as("exp_avg_sq.{}"));
    const double steps = trainer.ranks().executor(0).value(ir::StateRole::Steps);
    const runtime::StepResult bad = trainer.step();
    EXPECT_FALSE(bad.committed);
    EXPECT_FALSE(std::isfinite(bad.grad_norm) && std::isfinite(bad.loss));
    EXPECT_EQ(trainer.state(runtime::saved_as("{}")), before);
    EXPECT_EQ(trainer.state(runtime::saved_as("exp_avg.{}")), moments);
    EXPECT_EQ(trainer.state(runtime::saved_as("exp_avg_sq.{}")), squares);
    EXPECT_EQ(trainer.ranks().executor(1).value(ir::StateRole::Steps), steps);
    EXPECT_EQ(trainer.progress().samples_seen, 8);  // the data moves on
}

TEST(Step, AllocatesNothing) {
    if (std::getenv("LOCKSTEP_TEST_DEVICE")) GTEST_SKIP() << "of the host: what is given to late queues is kept until it runs";
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "a sanitizer's operator new does not count";
#endif
    for (const char* layout :
         {"", "[parallelism]\ndata_parallel_shard_degree = 2\ntensor_parallel_degree = 2\n[runtime]\ncomm_thread = \"on\"\n"}) {
        const compile::Recipe r = four_sequences(layout);
        for (Backend backend : {Backend::Cpu, Backend::Reference}) {
            const compile::Compiled compiled = compile_recipe(r, backend);
            const data::SyntheticSource data = source();
            runtime::Trainer trainer(compile::config_of(r), compiled, data);
            trainer.step();
            const int64_t before = allocations();
            for (int i = 0; i < 3; ++i) trainer.step();
            EXPECT_EQ(allocations() - before, 0) << layout;
            std::vector<ir::Timeline> timelines = trainer.new_timelines();
            const int64_t recorded = allocations();
            for (int i = 0; i < 3; ++i) trainer.step(timelines);
            EXPECT_EQ(allocations() - recorded, 0) << "recording, " << layout;
        }
    }
}

TEST(Step, TheSameRunGivesTheSameBits) {
    const compile::Recipe r = four_sequences(
        "[parallelism]\ndata_parallel_shard_degree = 2\ntensor_parallel_degree = 2\n[runtime]\ncomm_thread = "
        "\"on\"\nthreads_per_rank = 2\n");
    const Outcome a = run(r, Backend::Cpu, 3), b = run(r, Backend::Cpu, 3);
    EXPECT_EQ(a.losses, b.losses);
    EXPECT_EQ(a.weights, b.weights);
}

TEST(Step, PassesSwitchedOffChangeTheTextAndNotTheResult) {
    compile::Recipe r = four_sequences(
        "[parallelism]\ndata_parallel_shard_degree = 2\ntensor_parallel_degree = 2\n[activation_checkpoint]\nmode = \"full\"\n");
    r.set("training.dtype", "float64");
    const compile::Compiled all = compile_recipe(r, Backend::Reference);
    const Outcome expected = run(r, all, 3);
    for (const std::string& pass : compile::optional_passes()) {
        const compile::Compiled without = compile_recipe(r, Backend::Reference, {pass});
        // Two act where a GPU's kernels are, and one where the recipe has converters: tests/passes/keep_preactivations_test.cpp,
        // pack_attention_test.cpp and float8_products_test.cpp.
        const bool acts = pass != "keep_preactivations" && pass != "pack_attention" && pass != "float8_products";
        EXPECT_EQ(without.programs[0] != all.programs[0], acts) << pass;
        EXPECT_LT(difference(expected, run(r, without, 3)), 1e-10) << pass;
    }
}

TEST(Step, InitialValuesAreThoseOfTheNameAndIndex) {
    const compile::Recipe one = four_sequences(),
                          many = four_sequences("[parallelism]\ndata_parallel_shard_degree = 2\ntensor_parallel_degree = 2\n");
    const compile::Compiled a = compile_recipe(one, Backend::Cpu), b = compile_recipe(many, Backend::Cpu);
    const data::SyntheticSource data = source();
    runtime::Trainer x(compile::config_of(one), a, data), y(compile::config_of(many), b, data);
    const runtime::GlobalTensors wx = x.state(runtime::saved_as("{}"));
    EXPECT_EQ(wx, y.state(runtime::saved_as("{}")));
    double sum = 0, squares = 0;
    const std::vector<double>& w = wx.at("model.layers.0.self_attn.q_proj.weight");
    for (double v : w) sum += v, squares += v * v;
    EXPECT_NEAR(sum / static_cast<double>(w.size()), 0, 0.002);
    EXPECT_NEAR(std::sqrt(squares / static_cast<double>(w.size())), 0.02, 0.002);
}

}  // namespace
}  // namespace lockstep::testing
