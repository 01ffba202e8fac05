// Twenty steps against Hugging Face's models and PyTorch's AdamW, figure by figure.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/random.h"
#include "tests/golden/golden_run.h"

namespace lockstep::testing {
namespace {

constexpr double kAgrees = 1e-4;  // float32 rounding moves no figure by more than 5e-6

const Settings kOneRank = {{"training.local_batch_size", "8"}};
const Settings kFourRanks = {{"parallelism.tensor_parallel_degree", "2"},
                             {"parallelism.data_parallel_shard_degree", "2"},
                             {"training.local_batch_size", "2"}};

Settings with(Settings settings, const Settings& more) {
    settings.insert(settings.end(), more.begin(), more.end());
    return settings;
}

class Golden : public ::testing::TestWithParam<const char*> {
protected:
    void expect_agreement(Backend backend, const Settings& settings, double tolerance) {
        const Worst worst = compare(golden_figures(golden_, "float64"), run_golden(golden_, backend, settings));
        RecordProperty("worst", fmt::format("{:.2e} at {}", worst.relative, worst.where));
        EXPECT_LT(worst.relative, tolerance) << worst.where;
    }
    void expect_disagreement(const Settings& change) {
        const Worst worst =
            compare(golden_figures(golden_, "float64"), run_golden(golden_, Backend::Cpu, with(kOneRank, change)));
        EXPECT_GT(worst.relative, kAgrees) << change[0].first << " = " << change[0].second << " is not noticed";
    }
    std::string scaled(const char* group, const char* key, double factor) const {
        return fmt::format("{}", golden_[group][key].get<double>() * factor);
    }
    std::string further_from_one(const char* key) const {
        return fmt::format("{}", 1 - (1 - golden_["optimizer"][key].get<double>()) * 1.1);
    }

    const nlohmann::json golden_ = golden_case(GetParam());
};

TEST_P(Golden, HashesAreThoseOfTheFile) {
    EXPECT_EQ(fmt::format("{:#x}", hash_name("tokens")), golden_["checks"]["fnv1a64_of_tokens"].get<std::string>());
    EXPECT_EQ(fmt::format("{:#x}", splitmix64(0)), golden_["checks"]["splitmix64_of_0"].get<std::string>());
}

TEST_P(Golden, Float32OnOneRank) { expect_agreement(Backend::Cpu, kOneRank, kAgrees); }
TEST_P(Golden, Float32OnFourRanksInTwoMicrobatches) { expect_agreement(Backend::Cpu, kFourRanks, kAgrees); }
TEST_P(Golden, Float32WithTheLossInOnePieceAndRecompute) {
    expect_agreement(Backend::Cpu, with(kFourRanks, {{"training.fuse_loss", "false"}, {"activation_checkpoint.mode", "full"}}),
                     kAgrees);
}
// The plain loops take long: one layout a case.
TEST_P(Golden, Float64) {
    const bool one = std::string(GetParam()) == "llama_tied" || std::string(GetParam()) == "qwen2_bias";
    expect_agreement(Backend::Reference, with(one ? kOneRank : kFourRanks, {{"training.dtype", "float64"}}), 1e-12);
}

// What the comparison is worth: a tenth more of any of these is seen.
TEST_P(Golden, SeesAChangedEps) { expect_disagreement({{"optimizer.eps", scaled("optimizer", "eps", 1.1)}}); }
TEST_P(Golden, SeesAChangedBeta1) { expect_disagreement({{"optimizer.beta1", further_from_one("beta1")}}); }
TEST_P(Golden, SeesAChangedBeta2) { expect_disagreement({{"optimizer.beta2", further_from_one("beta2")}}); }
TEST_P(Golden, SeesAChangedWeightDecay) {
    expect_disagreement({{"optimizer.weight_decay", scaled("optimizer", "weight_decay", 1.1)}});
}
TEST_P(Golden, SeesAChangedRopeTheta) {
    if (!golden_["config"].contains("rope_theta")) GTEST_SKIP() << "the model has no rotary positions";
    expect_disagreement({{"model.rope_theta", scaled("config", "rope_theta", 1.1)}});
}
TEST_P(Golden, SeesAWindowThatIsOneWider) {
    if (!golden_["config"].contains("sliding_window")) GTEST_SKIP() << "the model has no window";
    const int window = golden_["config"]["sliding_window"].get<int>();
    expect_disagreement({{"model.sliding_window", std::to_string(window + 1)}});
    expect_disagreement({{"model.sliding_window", std::to_string(window - 1)}});
}
TEST_P(Golden, SeesTheOtherGelu) {
    if (golden_["config"].value("model_type", "") != "gpt2") GTEST_SKIP() << "the model has no GELU";
    expect_disagreement({{"model.gelu_erf", "1"}});
}
TEST_P(Golden, SeesAChangedNormEps) { expect_disagreement({{"model.norm_eps", scaled("config", "rms_norm_eps", 1.1)}}); }

INSTANTIATE_TEST_SUITE_P(Cases, Golden,
                         ::testing::Values("llama_gqa", "llama_tied", "gpt2", "qwen2_bias", "qwen3_qk_norm", "mistral_window"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace lockstep::testing
