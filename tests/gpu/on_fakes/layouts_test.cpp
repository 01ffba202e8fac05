// Layouts of small Llamas and GPT-2s on the device of a GPU: near the host's kernels, with equal bits in every legal order of
// streams; a wait that is left out shows; a step that follows another allocates nothing and waits for nothing of its own.
#include <gtest/gtest.h>

#include <random>

#include "tests/gpu/on_fakes/training.h"

namespace lockstep::testing {
namespace {

constexpr int kSteps = 2;

// A GPU has no kernels in float64.
std::vector<NamedSettings> settings_of_a_gpu() {
    std::vector<NamedSettings> all = sample_settings();
    std::erase_if(all, [](const NamedSettings& s) {
        return std::find(s.settings.begin(), s.settings.end(),
                         std::pair<std::string, std::string>("training.dtype", "float64")) != s.settings.end();
    });
    return all;
}

class GpuLayouts : public testing::TestWithParam<NamedSettings> {};

TEST_P(GpuLayouts, AreNearTheHostWithTheSameBitsInEverySchedule) {
    const compile::Recipe recipe = small_recipe(GetParam().settings);
    const compile::Compiled on_host = compile_recipe(recipe, Backend::Cpu), on_gpu = compile_for_gpu(recipe);
    const Outcome host = run(recipe, on_host, kSteps);
    const Outcome first = train(recipe, on_gpu, fake_gpu(1), kSteps);
    const bool narrow = compile::config_of(recipe).training.mixed_precision_param != compile::config_of(recipe).training.dtype ||
                        recipe.toml().find("float16") != std::string::npos;
    std::string where;
    const double apart = difference(host, first, &where);
    EXPECT_LE(apart, narrow ? 3e-2 : 2e-4) << where;
    for (uint64_t seed = 2; seed <= 7; ++seed)
        EXPECT_TRUE(same_bits(first, train(recipe, on_gpu, fake_gpu(seed), kSteps))) << "seed " << seed;
}

INSTANTIATE_TEST_SUITE_P(Settings, GpuLayouts, testing::ValuesIn(settings_of_a_gpu()),
                         [](const auto& info) { return info.param.name; });

TEST(GpuSchedules, AWaitThatIsLeftOutShows) {
    std::mt19937 random(1);
    int left_out = 0, noticed = 0;
    for (const char* name : {"zero3_recompute", "pipeline", "four_way_tp_with_cut_heads", "bfloat16_zero3_tp_recompute"}) {
        const auto all = settings_of_a_gpu();
        const auto settings = std::find_if(all.begin(), all.end(), [&](const NamedSettings& s) { return s.name == name; });
        const compile::Recipe recipe = small_recipe(settings->settings);
        const compile::Compiled compiled = compile_for_gpu(recipe);
        const Outcome right = train(recipe, compiled, fake_gpu(1), kSteps);
        const auto waits = static_cast<uint32_t>(fakes::cuda::counts().stream_waits);
        for (int k = 0; k < 10; ++k, ++left_out) {
            const int64_t which = random() % waits;
            bool shows = false;
            for (uint64_t seed = 1; seed <= 12 && !shows; ++seed) {
                runtime::Backend gpu = fake_gpu(seed);
                fakes::cuda::leave_out_wait(which);
                try {
                    shows = !same_bits(right, train(recipe, compiled, std::move(gpu), kSteps));
                } catch (const std::exception&) {
                    shows = true;
                }
            }
            noticed += shows ? 1 : 0;
        }
    }
    RecordProperty("noticed", noticed);
    EXPECT_GE(noticed, left_out * 95 / 100) << "of " << left_out;
}

TEST(GpuSteps, AllocateNothingAndWaitForNothingOfTheirOwn) {
    const compile::Recipe recipe =
        small_recipe({{"parallelism.data_parallel_shard_degree", "2"}, {"training.global_batch_size", "4"}});
    const compile::Compiled compiled = compile_for_gpu(recipe);
    const data::SyntheticSource data = synthetic_data(recipe, compiled);
    runtime::Trainer trainer(compile::config_of(recipe), compiled, data, nullptr, fake_gpu(3));
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

    Outcome one_by_one = train(recipe, compiled, fake_gpu(4), static_cast<int>(losses.size()));
    EXPECT_EQ(losses, one_by_one.losses);
}

}  // namespace
}  // namespace lockstep::testing
