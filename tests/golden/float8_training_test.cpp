// Training with float8 products against torchao's (make_float8.py). Twenty steps multiply differences of rounding: their bounds
// find a run that goes another way, not a wrong cast. The errors of the first step's gradients find that.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/golden/golden_run.h"

namespace lockstep::testing {
namespace float8 {
namespace {

constexpr int kSeeds = 8, kSteps = 20;
constexpr double kOrders = 4;     // times what torch's own orders of sums move
constexpr double kChance = 1.5;   // times the farthest of torchao's runs: ours are other runs
constexpr double kGradients = 3;  // times what torch's own orders of sums move errors of gradients

const Settings kFloat64 = {{"training.local_batch_size", "8"}, {"training.dtype", "float64"}};
const Settings kBfloat16 = {
    {"training.local_batch_size", "8"}, {"training.mixed_precision_param", "bfloat16"}, {"training.pack_products", "false"}};

Settings converted(const std::string& recipe) {
    Settings settings = kBfloat16;
    settings.emplace_back("model.converters", "[\"quantize.linear.float8\"]");
    if (recipe != "tensorwise") settings.emplace_back("quantize.linear.float8.recipe_name", recipe);
    return settings;
}

double rms(const std::vector<double>& x) {
    double sum = 0;
    for (double v : x) sum += v * v;
    return std::sqrt(sum / static_cast<double>(x.size()));
}

// Of relative differences.
double rms(const nlohmann::json& want, const std::vector<double>& got) {
    std::vector<double> differences;
    for (size_t i = 0; i < got.size(); ++i) differences.push_back(got[i] / want.at(i).get<double>() - 1);
    return rms(differences);
}

double largest(const std::vector<double>& want, const std::vector<double>& got) {
    double out = 0;
    for (size_t i = 0; i < want.size(); ++i) out = std::max(out, std::abs(got.at(i) / want[i] - 1));
    return out;
}
double largest(const std::map<std::string, double>& want, const std::map<std::string, double>& got) {
    double out = 0;
    for (const auto& [name, x] : want) out = std::max(out, std::abs(got.at(name) / x - 1));
    return out;
}

struct Trained {
    const char *name, *recipe;
};
void PrintTo(const Trained& t, std::ostream* stream) { *stream << t.name << " " << t.recipe; }

class GoldenFloat8Training : public ::testing::TestWithParam<Trained> {
protected:
    nlohmann::json with_weights(int seed) const {
        nlohmann::json golden = golden_;
        golden["formula"]["salt"] = fmt::format("#{}", seed);
        return golden;
    }
    // Of each parameter, the root mean square over the sets of weights of |got - exact| / |exact|.
    std::map<std::string, double> gradient_errors(const Settings& settings) const {
        std::map<std::string, std::vector<double>> errors;
        for (int seed = 0; seed < kSeeds; ++seed) {
            const runtime::GlobalTensors exact = first_gradients(with_weights(seed), Backend::Reference, kFloat64),
                                         got = first_gradients(with_weights(seed), Backend::Cpu, settings);
            for (const auto& [name, x] : exact) {
                double difference = 0, whole = 0;
                for (size_t i = 0; i < x.size(); ++i) difference += std::pow(got.at(name)[i] - x[i], 2), whole += x[i] * x[i];
                errors[name].push_back(std::sqrt(difference / whole));
            }
        }
        std::map<std::string, double> out;
        for (const auto& [name, x] : errors) out[name] = rms(x);
        return out;
    }
    // Of errors of gradients: the root mean square over parameters of the relative difference.
    double apart(const std::map<std::string, double>& errors) const {
        std::vector<double> differences;
        for (const auto& [name, theirs] : recipe_["gradient_errors"].items())
            differences.push_back(errors.at(name) / theirs.get<double>() - 1);
        return rms(differences);
    }

    const nlohmann::json golden_ = golden_case("float8")["training"][GetParam().name];
    const nlohmann::json recipe_ = golden_["recipes"][GetParam().recipe];
    const Settings settings_ = converted(GetParam().recipe);
};
INSTANTIATE_TEST_SUITE_P(Cases, GoldenFloat8Training,
                         ::testing::Values(Trained{"llama_gqa", "tensorwise"}, Trained{"llama_gqa", "rowwise"},
                                           Trained{"llama_32", "tensorwise"}, Trained{"llama_32", "rowwise"},
                                           Trained{"llama_32", "rowwise_with_gw_hp"}),
                         [](const auto& info) { return fmt::format("{}_{}", info.param.name, info.param.recipe); });

TEST_P(GoldenFloat8Training, MovesNoFigureFartherThanOrdersOfSums) {
    const GoldenFigures want = golden_figures(recipe_, "torchao"), got = run_golden(golden_, Backend::Cpu, settings_);
    const nlohmann::json& noise = recipe_["noise"];
    const auto bound = [&](const char* figure) { return kOrders * noise[figure].get<double>(); };
    EXPECT_LE(largest(want.losses, got.losses), bound("losses"));
    EXPECT_LE(largest(want.grad_norms, got.grad_norms), bound("grad_norms"));
    EXPECT_LE(largest(want.step1_param_grad_norms, got.step1_param_grad_norms), bound("step1_param_grad_norms"));
    EXPECT_LE(largest(want.final_param_norms, got.final_param_norms), bound("final_param_norms"));
    EXPECT_LE(std::abs(got.final_loss / want.final_loss - 1), bound("final_loss"));
}

TEST_P(GoldenFloat8Training, StaysAsNearToFloat64) {
    std::vector<double> first_loss, losses, grad_norms;
    for (int seed = 0; seed < kSeeds; ++seed) {
        const nlohmann::json& exact = golden_["float64"][static_cast<size_t>(seed)];
        const GoldenFigures got = run_steps(with_weights(seed), settings_, kSteps);
        first_loss.push_back(rms(exact["losses"], {got.losses[0]}));
        losses.push_back(rms(exact["losses"], got.losses));
        grad_norms.push_back(rms(exact["grad_norms"], got.grad_norms));
    }
    const auto allowed = [&](const char* figure) {
        double farthest = 0;
        for (const nlohmann::json& run : recipe_["distances"]) farthest = std::max(farthest, run[figure].get<double>());
        return kChance * farthest;
    };
    EXPECT_LE(rms(first_loss), allowed("first_loss"));
    EXPECT_LE(rms(losses), allowed("losses"));
    EXPECT_LE(rms(grad_norms), allowed("grad_norms"));
}

TEST_P(GoldenFloat8Training, GradientsAreAsFarFromFloat64) {
    const double bound = kGradients * recipe_["gradient_errors_noise"].get<double>(), found = apart(gradient_errors(settings_));
    RecordProperty("apart", fmt::format("{:.4f} of {:.4f}", found, bound));
    EXPECT_LE(found, bound);
    EXPECT_GT(apart(gradient_errors(kBfloat16)), bound) << "training without float8 passes";
}

// What that comparison is worth: torchao with other settings.
TEST(GoldenFloat8Sensitivity, MistakesAreSeen) {
    const nlohmann::json golden = golden_case("float8")["training"]["llama_32"];
    const double bound = kGradients * golden["recipes"]["tensorwise"]["gradient_errors_noise"].get<double>();
    for (const char* mistake : {"E4M3 gradients", "E5M2 throughout", "rowwise", "nothing converted"})
        EXPECT_GT(golden["sensitivity"][mistake].get<double>(), bound) << mistake;
}

}  // namespace
}  // namespace float8
}  // namespace lockstep::testing
