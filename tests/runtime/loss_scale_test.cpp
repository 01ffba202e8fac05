// Loss scaling against the rule of torch.amp.GradScaler (growth and backoff by 2), written here once more, and against the same
// steps without a scale.
#include <gtest/gtest.h>

#include <cmath>

#include "runtime/trainer.h"
#include "tests/compile/recipes.h"
#include "tests/equivalence/run.h"

namespace lockstep::testing {
namespace {

struct ScaledTraining {
    explicit ScaledTraining(const Settings& settings, Backend backend = Backend::Reference)
        : r(small_recipe(settings)),
          compiled(compile_recipe(r, backend)),
          data(synthetic_data(r, compiled)),
          trainer(compile::config_of(r), compiled, data) {
        start(trainer, r);
    }
    double value(ir::StateRole role, int64_t rank = 0) { return trainer.ranks().executor(rank).value(role); }
    runtime::GlobalTensors saved(const char* name) { return trainer.state(runtime::saved_as(name)); }

    compile::Recipe r;
    compile::Compiled compiled;
    data::SyntheticSource data;
    runtime::Trainer trainer;
};

Settings half(Settings more) {
    Settings all = {{"training.mixed_precision_param", "float16"}, {"lr_scheduler.warmup_steps", "0"}};
    all.insert(all.end(), more.begin(), more.end());
    return all;
}

// The scale after each of `committed`, from `scale` on.
class GradScaler {
public:
    GradScaler(double scale, int64_t window, double least) : scale_(scale), least_(least), window_(window) {}
    double after(bool committed) {
        if (!committed) scale_ = std::max(scale_ / 2, least_), tracker_ = 0;
        else if (++tracker_ == window_) scale_ *= 2, tracker_ = 0;
        return scale_;
    }

private:
    double scale_, least_;
    int64_t window_, tracker_ = 0;
};

TEST(LossScale, IsHalvedUntilGradientsFitAndThenGrows) {
    ScaledTraining t(half({{"training.initial_loss_scale", "1e9"}, {"training.loss_scale_window", "3"}}));
    GradScaler expected(1e9, 3, 1);
    double scale = 1e9;
    int skipped = 0, grown = 0;
    for (int i = 0; i < 40; ++i) {
        const runtime::GlobalTensors before = t.saved("{}"), moments = t.saved("exp_avg.{}");
        const double steps = t.value(ir::StateRole::Steps);
        const runtime::StepResult s = t.trainer.step();
        EXPECT_EQ(s.loss_scale, scale);
        scale = expected.after(s.committed);
        EXPECT_EQ(s.next_loss_scale, scale) << "step " << i;
        EXPECT_EQ(t.value(ir::StateRole::Steps), steps + (s.committed ? 1 : 0));
        EXPECT_TRUE(std::isfinite(s.loss));  // forward knows nothing of the scale
        EXPECT_EQ(t.saved("{}") == before, !s.committed);
        EXPECT_EQ(t.saved("exp_avg.{}") == moments, !s.committed);
        skipped += s.committed ? 0 : 1, grown += s.next_loss_scale > s.loss_scale ? 1 : 0;
    }
    EXPECT_GE(skipped, 3);
    EXPECT_GE(grown, 3);
}

TEST(LossScale, StaysAtItsLeast) {
    ScaledTraining t(half({{"training.initial_loss_scale", "1e30"}, {"training.min_loss_scale", "4e29"}}));
    for (const double expected : {5e29, 4e29, 4e29}) {
        const runtime::StepResult s = t.trainer.step();
        EXPECT_FALSE(s.committed);
        EXPECT_EQ(s.next_loss_scale, expected);
    }
}

TEST(LossScale, IsOneOnAllRanks) {
    ScaledTraining t(half({{"training.initial_loss_scale", "1e9"},
                           {"training.loss_scale_window", "2"},
                           {"parallelism.pipeline_parallel_degree", "2"},
                           {"parallelism.data_parallel_shard_degree", "2"},
                           {"training.local_batch_size", "2"}}));
    bool skipped = false;
    for (int i = 0; i < 20; ++i) {
        skipped |= !t.trainer.step().committed;
        for (int64_t rank = 1; rank < 4; ++rank) {
            EXPECT_EQ(t.value(ir::StateRole::LossScale, rank), t.value(ir::StateRole::LossScale));
            EXPECT_EQ(t.value(ir::StateRole::GrowthTracker, rank), t.value(ir::StateRole::GrowthTracker));
        }
    }
    EXPECT_TRUE(skipped);
}

// A fixed scale is a state that nothing changes; one that float16 holds does what a dynamic one does between its changes.
TEST(LossScale, FixedEqualsDynamicThatDoesNotChange) {
    ScaledTraining fixed(half({{"training.loss_scale", "256"}})), dynamic(half({{"training.initial_loss_scale", "256"}}));
    for (int i = 0; i < 4; ++i) {
        const runtime::StepResult a = fixed.trainer.step(), b = dynamic.trainer.step();
        EXPECT_EQ(a.loss, b.loss);
        EXPECT_EQ(a.grad_norm, b.grad_norm);
        EXPECT_EQ(a.next_loss_scale, 256);
    }
    EXPECT_EQ(fixed.saved("{}"), dynamic.saved("{}"));
}

// Gradients that float16 does not hold vanish: with a scale that lifts them the norms are those of float32.
TEST(LossScale, SavesSmallGradients) {
    const Settings tiny = {{"training.global_batch_size", "64"},
                           {"training.local_batch_size", "8"},
                           {"optimizer.lr", "3e-3"},
                           {"lr_scheduler.warmup_steps", "0"}};
    const auto with = [&](Settings more) {
        more.insert(more.end(), tiny.begin(), tiny.end());
        ScaledTraining t(more);
        double distance = 0;
        Settings plain = tiny;
        ScaledTraining exact(plain);
        for (int i = 0; i < 6; ++i)
            distance = std::max(distance, std::abs(t.trainer.step().grad_norm - exact.trainer.step().grad_norm));
        return distance;
    };
    const double scaled = with(half({})), vanished = with(half({{"training.loss_scale", "1e-5"}}));
    EXPECT_GT(vanished, 20 * scaled);
}

}  // namespace
}  // namespace lockstep::testing
