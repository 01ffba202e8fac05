// Layouts of small Llamas and GPT-2s on the device of a GPU: near the host's kernels, with equal bits in every legal order of
// streams; a wait that is left out shows; a step that follows another allocates nothing and waits for nothing of its own.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "tests/equivalence/left_out_waits.h"
#include "tests/gpu/on_fakes/training.h"

namespace lockstep::testing {
namespace {

// How many legal orders of the streams a layout is held in: fewer where a step of many ranks takes seconds on the emulator.
uint64_t orders_of(const compile::Compiled& compiled) {
    return std::clamp<uint64_t>(24 / static_cast<uint64_t>(compiled.layout.ranks), 3, 8);
}

class GpuLayouts : public ::testing::TestWithParam<NamedSettings> {};

TEST_P(GpuLayouts, AreNearTheHostWithTheSameBitsInEverySchedule) {
    const compile::Recipe recipe = small_recipe(GetParam().settings);
    const compile::Compiled on_host = compile_recipe(recipe, Backend::Cpu), on_gpu = compile_for_gpu(recipe);
    constexpr int kSteps = 2;
    const Outcome host = run(recipe, on_host, kSteps);
    const Outcome first = train(recipe, on_gpu, fake_gpu(1), kSteps);
    const bool narrow = compile::config_of(recipe).training.mixed_precision_param != compile::config_of(recipe).training.dtype ||
                        recipe.toml().find("float16") != std::string::npos;
    std::string where;
    const double apart = difference(host, first, &where);
    EXPECT_LE(apart, narrow ? 3e-2 : 2e-4) << where;
    for (uint64_t seed = 2; seed <= orders_of(on_gpu); ++seed)
        EXPECT_TRUE(first == train(recipe, on_gpu, fake_gpu(seed), kSteps)) << "seed " << seed;
}

INSTANTIATE_TEST_SUITE_P(Settings, GpuLayouts, ::testing::ValuesIn(settings_of_a_gpu()),
                         [](const auto& info) { return info.param.name; });

TEST(GpuOrders, AreTwoHundredInAll) {
    uint64_t all = 0;
    for (const NamedSettings& s : settings_of_a_gpu()) all += orders_of(compile_for_gpu(small_recipe(s.settings)));
    EXPECT_GE(all, 200u);
}

TEST(GpuGraphs, HaveTheBitsOfSingleCalls) {
    for (const Settings& settings :
         {Settings{}, Settings{{"training.mixed_precision_param", "bfloat16"}, {"training.global_batch_size", "3"}}}) {
        compile::Recipe recipe = small_recipe(settings);
        const compile::Compiled compiled = compile_for_gpu(recipe);
        const Outcome calls = train(recipe, compiled, fake_gpu(1), 5);
        recipe.set("runtime.cuda_graph", "true");
        for (uint64_t seed = 2; seed <= 10; ++seed) {
            EXPECT_TRUE(calls == train(recipe, compiled, fake_gpu(seed), 5)) << "seed " << seed;
            EXPECT_EQ(fakes::cuda::counts().graph_launches, 4);
        }
    }
}

TEST(GpuSchedules, AWaitThatIsLeftOutShows) {
    const auto drawn = [](uint64_t seed) {
        std::optional<Draw> d = draw(seed, Dtype::F32);
        if (!d || d->compiled.layout.ranks > 4) return std::optional<Draw>();  // a step of more takes seconds on the emulator
        d->recipe.set("validation.enable", "false");                           // one step of training is run
        d->compiled = compile_for_gpu(d->recipe);
        return d;
    };
    const auto in_order = [](const compile::Recipe& recipe, const compile::Compiled& compiled, uint64_t order) {
        return train(recipe, compiled, fake_gpu(order), 1);
    };
    const LeftOutWaits left = leave_out_waits({drawn, in_order, 4, 6, 120});
    EXPECT_GE(left.needed, 8);
    EXPECT_GE(left.seen, left.needed * 0.95) << left.missed;
}

TEST(GpuSteps, AGpuThatIsTooSmallIsNamed) {
    const compile::Recipe recipe = small_recipe();
    const compile::Compiled compiled = compile_for_gpu(recipe);
    const data::SyntheticSource data = synthetic_data(recipe, compiled);
    runtime::Backend gpu = fake_gpu(1);
    fakes::cuda::set_memory_limit(1 << 20);
    try {
        runtime::Trainer trainer(compile::config_of(recipe), compiled, data, nullptr, std::move(gpu));
        FAIL() << "it had memory";
    } catch (const UserError& e) {
        EXPECT_EQ(e.id(), "runtime.out_of_memory");
        EXPECT_NE(std::string(e.what()).find("the device refused"), std::string::npos) << e.what();
    }
}

// The flight record, eager and with graphs.
TEST(GpuSteps, AreWrittenDownAsTheyRunNotAsTheyAreGiven) {
    for (const char* graph : {"false", "true"}) {
        const compile::Recipe recipe = small_recipe({{"runtime.cuda_graph", graph}});
        const compile::Compiled compiled = compile_for_gpu(recipe);
        const data::SyntheticSource data = synthetic_data(recipe, compiled);
        runtime::Trainer trainer(compile::config_of(recipe), compiled, data, nullptr, fake_gpu(5));
        start(trainer, recipe);
        const runtime::Flight& flight = trainer.ranks().first().flight();
        trainer.step();
        const uint64_t of_a_step = flight.begun(QueueName::Compute);
        EXPECT_GT(of_a_step, 10u);
        EXPECT_EQ(flight.last(QueueName::Compute, 1).at(0).entry, nullptr);
        trainer.step_and_begin_next();
        EXPECT_GE(flight.begun(QueueName::Compute), 2 * of_a_step);
        EXPECT_LT(flight.begun(QueueName::Compute), 3 * of_a_step);
        trainer.step();
        EXPECT_EQ(flight.begun(QueueName::Compute), 3 * of_a_step);
        EXPECT_EQ(flight.last(QueueName::Compute, 1).at(0).entry, nullptr);
    }
}

TEST(GpuSteps, AllocateNothingAndWaitForNothingOfTheirOwn) {
    const compile::Recipe recipe =
        small_recipe({{"parallelism.data_parallel_shard_degree", "2"}, {"training.global_batch_size", "4"}});
    const compile::Compiled compiled = compile_for_gpu(recipe);
    const data::SyntheticSource data = synthetic_data(recipe, compiled);
    std::optional<runtime::Trainer> made(std::in_place, compile::config_of(recipe), compiled, data, nullptr, fake_gpu(3));
    runtime::Trainer& trainer = *made;
    start(trainer, recipe);
    std::vector<double> losses;
    for (int step = 0; step < 3; ++step) losses.push_back(trainer.step_and_begin_next().loss);
    const fakes::cuda::Counts before = fakes::cuda::counts();
    constexpr int kMore = 4;
    for (int step = 0; step < kMore; ++step) losses.push_back(trainer.step_and_begin_next().loss);
    const fakes::cuda::Counts after = fakes::cuda::counts();
    EXPECT_EQ(after.device_allocations, before.device_allocations);
    EXPECT_EQ(after.pinned_allocations, before.pinned_allocations);
    EXPECT_EQ(after.streams, before.streams);
    EXPECT_EQ(after.events, before.events);
    // One a step: for the result of the step before the one that has been begun.
    EXPECT_EQ(after.host_waits - before.host_waits, kMore);
    losses.push_back(trainer.step().loss);
    made.reset();

    const Outcome one_by_one = train(recipe, compiled, fake_gpu(4), static_cast<int>(losses.size()));
    EXPECT_EQ(losses, one_by_one.losses);
}

}  // namespace
}  // namespace lockstep::testing
