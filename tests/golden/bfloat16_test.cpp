// Twenty steps in bfloat16 beside PyTorch's autocast on the same case: as close to the float64 figures, and as close to
// autocast's as autocast's own runs are to each other (README.md).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/golden/golden_run.h"

namespace lockstep::testing {
namespace {

using Differences = std::map<std::string, double>;  // by kind of figure

double largest(const std::vector<double>& want, const std::vector<double>& got) {
    double most = 0;
    for (size_t i = 0; i < want.size(); ++i) most = std::max(most, std::abs(want[i] - got.at(i)) / std::abs(want[i]));
    return most;
}
double largest(const std::map<std::string, double>& want, const std::map<std::string, double>& got) {
    double most = 0;
    for (const auto& [name, x] : want) most = std::max(most, std::abs(x - got.at(name)) / std::abs(x));
    return most;
}
Differences differences(const GoldenFigures& want, const GoldenFigures& got) {
    return {{"losses", largest(want.losses, got.losses)},
            {"grad_norms", largest(want.grad_norms, got.grad_norms)},
            {"step1_param_grad_norms", largest(want.step1_param_grad_norms, got.step1_param_grad_norms)},
            {"final_loss", std::abs(want.final_loss - got.final_loss) / want.final_loss},
            {"final_param_norms", largest(want.final_param_norms, got.final_param_norms)}};
}

class GoldenBfloat16 : public ::testing::TestWithParam<const char*> {
protected:
    void expect_as_good_as_autocast(const Settings& settings) {
        const GoldenFigures ours = run_golden(exact_, Backend::Cpu, settings);
        const Differences error = differences(golden_figures(exact_, "float64"), ours),
                          apart = differences(golden_figures(autocast_, "autocast"), ours);
        for (const auto& [kind, e] : error) {
            const double autocast_error = autocast_["from_float64"][kind], run_to_run = autocast_["run_to_run"][kind];
            fmt::print("{:24} from float64 {:.1e} (autocast {:.1e}), from autocast {:.1e} (run to run {:.1e})\n", kind, e,
                       autocast_error, apart.at(kind), run_to_run);
            EXPECT_LT(e, kMargin * std::max(autocast_error, run_to_run)) << kind;
            EXPECT_LT(apart.at(kind), kMargin * std::max(autocast_error, run_to_run)) << kind;
        }
    }
    static constexpr double kMargin = 2;
    const nlohmann::json exact_ = golden_case(GetParam()), autocast_ = golden_case(std::string(GetParam()) + "_bfloat16");
};

TEST_P(GoldenBfloat16, OneRank) {
    expect_as_good_as_autocast({{"training.local_batch_size", "8"}, {"training.mixed_precision_param", "bfloat16"}});
}
TEST_P(GoldenBfloat16, FourRanksInTwoMicrobatches) {
    expect_as_good_as_autocast({{"parallelism.tensor_parallel_degree", "2"},
                                {"parallelism.data_parallel_shard_degree", "2"},
                                {"training.local_batch_size", "2"},
                                {"training.mixed_precision_param", "bfloat16"}});
}

INSTANTIATE_TEST_SUITE_P(Cases, GoldenBfloat16, ::testing::Values("llama_gqa", "llama_tied"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace lockstep::testing
