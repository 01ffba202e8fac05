// Master weights through a checkpoint: saved in float32 under their names, resumed bit by bit, whatever copy forward reads.
#include <gtest/gtest.h>

#include <unistd.h>

#include <filesystem>

#include "base/bfloat16.h"
#include "checkpoint/safetensors.h"
#include "runtime/load_states.h"
#include "runtime/saver.h"
#include "tests/compile/recipes.h"
#include "tests/equivalence/run.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;

class MixedPrecision : public ::testing::TestWithParam<const char*> {
protected:
    MixedPrecision() {
        folder_ = fs::temp_directory_path() / ("lockstep_mixed_" + std::to_string(getpid()));
        fs::remove_all(folder_);
        fs::create_directories(folder_);
    }
    ~MixedPrecision() override { fs::remove_all(folder_); }

    static compile::Recipe recipe(const std::string& preset, const Settings& more) {
        Settings settings = {{"parallelism.data_parallel_shard_degree", "2"}, {"partition.preset", preset}};
        settings.insert(settings.end(), more.begin(), more.end());
        return small_recipe(settings);
    }
    void expect_same_after_resume(const compile::Recipe& r, const std::string& file_type) {
        const compile::Compiled compiled = compile_recipe(r, Backend::Cpu);
        const auto data = synthetic_data(r, compiled);
        runtime::Trainer whole(compile::config_of(r), compiled, data), second(compile::config_of(r), compiled, data);
        for (int i = 0; i < 2; ++i) whole.step();
        runtime::Saver saver(whole, r, folder_.string());
        saver.save(runtime::SaveContents::All);
        const std::string saved = saver.latest();
        const checkpoint::SafetensorsReader reader(saved + "/model.safetensors");
        EXPECT_EQ(reader.find("model.norm.weight").spec.dtype, file_type);
        runtime::load(second, saved);
        for (int i = 0; i < 3; ++i) {
            const runtime::StepResult a = whole.step(), b = second.step();
            EXPECT_EQ(a.loss, b.loss) << "step " << i;
            EXPECT_EQ(a.grad_norm, b.grad_norm) << "step " << i;
            EXPECT_EQ(a.loss_scale, b.loss_scale) << "step " << i;
            EXPECT_TRUE(a.committed);
        }
        EXPECT_EQ(whole.state(runtime::saved_as("{}")), second.state(runtime::saved_as("{}")));
    }
    fs::path folder_;
};

TEST_P(MixedPrecision, ResumesBitByBitFromFloat32MasterWeights) {
    expect_same_after_resume(recipe(GetParam(), {{"training.mixed_precision_param", "bfloat16"}}), "F32");
}
TEST_P(MixedPrecision, ResumesBitByBitWithNormsInFloat32) {
    expect_same_after_resume(
        recipe(GetParam(), {{"training.mixed_precision_param", "bfloat16"}, {"training.mixed_precision_norm", "float32"}}),
        "F32");
}
// The scale grows with every second step, before the checkpoint and after.
TEST_P(MixedPrecision, ResumesBitByBitWithAScaledLossInFloat16) {
    expect_same_after_resume(recipe(GetParam(), {{"training.mixed_precision_param", "float16"},
                                                 {"training.initial_loss_scale", "64"},
                                                 {"training.loss_scale_window", "2"}}),
                             "F32");
}
TEST_P(MixedPrecision, ResumesBitByBitInBfloat16Throughout) {
    expect_same_after_resume(recipe(GetParam(), {{"training.dtype", "bfloat16"}}), "BF16");
}
// The weights are those that the optimizer changes: finer than what forward reads.
TEST_P(MixedPrecision, ForwardReadsTheMasterWeightsRounded) {
    const compile::Recipe r = recipe(GetParam(), {{"training.mixed_precision_param", "bfloat16"}});
    const compile::Compiled compiled = compile_recipe(r, Backend::Cpu);
    const auto data = synthetic_data(r, compiled);
    runtime::Trainer trainer(compile::config_of(r), compiled, data);
    trainer.step();
    const runtime::GlobalTensors master = trainer.state(runtime::saved_as("{}")),
                                 copy = trainer.state([](const ir::State&s) { return s.is_weights() && s.copy_of >= 0; });
    const bool apart = std::string(GetParam()) == "zero1" || std::string(GetParam()) == "zero2";
    int64_t finer = 0;
    for (const auto& [name, values] : master) {
        for (size_t i = 0; i < values.size(); ++i) {
            const double rounded = static_cast<float>(Bf16(static_cast<float>(values[i])));
            finer += rounded != values[i];
            if (!apart) continue;  // forward reads a cast of the master weights
            EXPECT_EQ(copy.at(name)[i], rounded) << name << " " << i;
        }
    }
    EXPECT_GT(finer, 100);
}

INSTANTIATE_TEST_SUITE_P(Partitions, MixedPrecision, ::testing::Values("none", "zero1", "zero2", "zero3"));

}  // namespace
}  // namespace lockstep::testing
