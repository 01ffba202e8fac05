// The phases of the learning rate, and what becomes of them where they do not fit: TorchTitan's rule.
#include "runtime/lr_schedule.h"

#include <gtest/gtest.h>

#include "tests/compile/recipes.h"

namespace lockstep::testing {
namespace {

compile::LrPhases phases(const Settings& settings) { return compile::lr_phases(compile::config_of(small_recipe(settings))); }

TEST(LrSchedule, PhasesThatDoNotFitAreShortenedWithAWarning) {
    const Settings warm = {{"training.steps", "3"}, {"lr_scheduler.warmup_steps", "200"}};
    EXPECT_EQ(phases(warm).warmup, 3);
    EXPECT_EQ(phases(warm).decay, 0);
    ASSERT_EQ(compile::warnings(small_recipe(warm)).size(), 1u);
    EXPECT_EQ(compile::warnings(small_recipe(warm))[0],
              "lr_scheduler.warmup_steps = 200 is more than the 3 steps of the schedule: warm-up takes 3 steps");
    const runtime::LrSchedule rate(compile::config_of(small_recipe(warm)));
    for (int64_t step = 0; step < 3; ++step) EXPECT_GT(rate.at(step), 0);
    EXPECT_EQ(rate.at(2), small_recipe(warm).number("optimizer.lr"));

    const Settings both = {{"training.steps", "10"}, {"lr_scheduler.warmup_steps", "6"}, {"lr_scheduler.decay_ratio", "0.5"}};
    EXPECT_EQ(phases(both).warmup, 6);
    EXPECT_EQ(phases(both).decay, 4);
    EXPECT_EQ(compile::warnings(small_recipe(both)).size(), 1u);

    const Settings fits = {{"training.steps", "10"}, {"lr_scheduler.warmup_steps", "2"}, {"lr_scheduler.decay_ratio", "0.5"}};
    EXPECT_EQ(phases(fits).stable, 4);
    EXPECT_TRUE(compile::warnings(small_recipe(fits)).empty());
}

}  // namespace
}  // namespace lockstep::testing
