// bfloat16 training against PyTorch's, by how far each is from float64: the gradients of the first step, its loss, and losses and
// gradient norms of twenty steps, for several sets of weights (make_bfloat16.py).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

#include "base/bfloat16.h"
#include "tests/golden/golden_run.h"

namespace lockstep::testing {
namespace {

constexpr int kSteps = 20, kSeeds = 8, kGradientSeeds = 4;  // sets of weights
const Settings kFloat64 = {{"training.local_batch_size", "8"}, {"training.dtype", "float64"}};
const Settings kBfloat16 = {{"training.local_batch_size", "8"}, {"training.mixed_precision_param", "bfloat16"}};
const Settings kWideStream = {{"training.local_batch_size", "8"},
                              {"training.mixed_precision_param", "bfloat16"},
                              {"training.logits", "float32"},
                              {"training.fp32_residual_connection", "true"}};
const Settings kLikeAutocast = {{"training.local_batch_size", "8"},
                                {"training.mixed_precision_param", "bfloat16"},
                                {"training.mixed_precision_norm", "float32"},
                                {"training.fp32_residual_connection", "true"}};
const Settings kFourRanksInBfloat16 = {{"parallelism.tensor_parallel_degree", "2"},
                                       {"parallelism.data_parallel_shard_degree", "2"},
                                       {"training.local_batch_size", "2"},
                                       {"training.mixed_precision_param", "bfloat16"}};

double rms(const std::vector<double>& x) {
    double sum = 0;
    for (double v : x) sum += v * v;
    return std::sqrt(sum / static_cast<double>(x.size()));
}

std::vector<double> relative(const std::vector<double>& exact, const std::vector<double>& got) {
    std::vector<double> out;
    for (size_t i = 0; i < got.size(); ++i) out.push_back(got[i] / exact[i] - 1);
    return out;
}

// Of every parameter's gradient, and their root mean square.
double relative(const runtime::GlobalTensors& exact, const runtime::GlobalTensors& got) {
    std::vector<double> of_parameters;
    for (const auto& [name, x] : exact) {
        double difference = 0, whole = 0;
        for (size_t i = 0; i < x.size(); ++i) difference += std::pow(got.at(name)[i] - x[i], 2), whole += x[i] * x[i];
        of_parameters.push_back(std::sqrt(difference / whole));
    }
    return rms(of_parameters);
}

const nlohmann::json& figures() {
    static const nlohmann::json all = golden_case("bfloat16");
    return all;
}

// A case with one of its sets of weights.
nlohmann::json with_weights(const std::string& name, int seed) {
    nlohmann::json golden = golden_case(name);
    golden["formula"]["salt"] = fmt::format("#{}", seed);
    return golden;
}

// By the plain loops of float64, which take long: once a process.
const runtime::GlobalTensors& exact_gradients(const std::string& name, int seed) {
    static std::map<std::pair<std::string, int>, runtime::GlobalTensors> known;
    runtime::GlobalTensors& gradients = known[{name, seed}];
    if (gradients.empty()) gradients = first_gradients(with_weights(name, seed), Backend::Reference, kFloat64);
    return gradients;
}

constexpr const char* kFigures[] = {"gradients", "first_loss", "losses", "grad_norms"};
using Distances = std::map<std::string, std::vector<double>>;  // by figure, of each set of weights

// Runs of PyTorch, those of the first way first.
Distances pytorch(const std::string& name, const std::vector<std::string>& ways) {
    Distances out;
    for (const std::string& way : ways) {
        for (const nlohmann::json& run : figures()["cases"][name][way]) {
            for (const char* figure : kFigures) out[figure].push_back(run[figure]);
        }
    }
    return out;
}

Distances ours(const std::string& name, const Settings& how, int seeds, const Watcher& watcher = {}) {
    Distances out;
    for (int seed = 0; seed < seeds; ++seed) {
        const nlohmann::json golden = with_weights(name, seed),
                             &exact = figures()["cases"][name]["float64"][static_cast<size_t>(seed)];
        const GoldenFigures got = run_steps(golden, how, kSteps, watcher);
        const std::vector<double> losses = relative(exact["losses"], got.losses);
        out["first_loss"].push_back(std::abs(losses[0]));
        out["losses"].push_back(rms(losses));
        out["grad_norms"].push_back(rms(relative(exact["grad_norms"], got.grad_norms)));
        if (seed < kGradientSeeds)
            out["gradients"].push_back(
                relative(exact_gradients(name, seed), first_gradients(golden, Backend::Cpu, how, watcher)));
    }
    return out;
}

// What PyTorch's own runs allow. The error of gradients hardly varies: theirs with the same weights and a little. Losses and
// norms are spread by twenty steps of AdamW: their farthest run, and half of it, as ours are other runs.
constexpr double kAlike = 1.15, kChance = 1.5;
// Under autocast the residual stream stays float32; here, as in a cast model, it is bfloat16 unless asked otherwise: gradients
// are then 1.14 (qwen3_qk_norm) to 1.46 (gpt2) times as far from float64 as autocast's.
constexpr double kResidual = 1.5;
// With the stream in float32 one thing is left of that: under autocast norms read their weights, and the stream begins with rows
// of the table, in float32; here parameters are bfloat16 in forward and backward unless asked otherwise. Autocast of rounded
// parameters ("rounded") has the same gradients.
constexpr double kParameters = 1.25;

double allowed(const Distances& theirs, const std::string& figure) {
    std::vector<double> runs = theirs.at(figure);
    if (figure != "gradients") return kChance * *std::max_element(runs.begin(), runs.end());
    runs.resize(kGradientSeeds);
    return kAlike * rms(runs);
}

// The first figure in which ours is farther from float64 than `factor` times what theirs allow; empty: none.
std::string farther(const Distances& mine, const Distances& theirs, double factor = 1) {
    for (const char* figure : kFigures) {
        const double got = rms(mine.at(figure)), bound = factor * allowed(theirs, figure);
        if (!(got <= bound)) return fmt::format("{} {:.2e}, allowed {:.2e}", figure, got, bound);
    }
    return "";
}

class Bfloat16 : public ::testing::TestWithParam<const char*> {
protected:
    // Their gradient would be zero but for positions, so it is mostly what rounding leaves, whatever the stream is.
    static bool has_key_biases() { return GetParam() == std::string("qwen2_bias"); }

    void record(const Distances& mine) {
        for (const auto& [figure, d] : mine) RecordProperty(figure, fmt::format("{:.2e}", rms(d)));
    }
};
INSTANTIATE_TEST_SUITE_P(Golden, Bfloat16,
                         ::testing::Values("llama_gqa", "llama_tied", "gpt2", "qwen2_bias", "qwen3_qk_norm", "mistral_window"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(Bfloat16, IsAsNearToFloat64AsPyTorch) {
    const Distances mine = ours(GetParam(), kBfloat16, kSeeds);
    record(mine);
    EXPECT_EQ(farther(mine, pytorch(GetParam(), {"cast sdpa"})), "");
    for (const char* way : {"autocast eager", "autocast sdpa"})
        EXPECT_EQ(farther(mine, pytorch(GetParam(), {way}), kResidual), "") << way;
}

TEST_P(Bfloat16, WithAFloat32ResidualStreamIsAsNearAsAutocastOfTheSameParameters) {
    const Distances mine = ours(GetParam(), kWideStream, kSeeds);
    record(mine);
    EXPECT_EQ(farther(mine, pytorch(GetParam(), {"rounded sdpa", "autocast eager", "autocast sdpa"})), "");
    for (const char* way : {"autocast eager", "autocast sdpa"})
        EXPECT_EQ(farther(mine, pytorch(GetParam(), {way}), kParameters), "") << way;
    std::vector<double> narrow;
    for (int seed = 0; seed < kGradientSeeds; ++seed)
        narrow.push_back(relative(exact_gradients(GetParam(), seed),
                                  first_gradients(with_weights(GetParam(), seed), Backend::Cpu, kBfloat16)));
    EXPECT_LT(rms(mine.at("gradients")), (has_key_biases() ? 0.99 : 0.975) * rms(narrow));  // 0.985 with AMX; 0.92 to 0.96
}

// Norms read their weights in float32, too. Of what autocast does not round the rows that the stream begins with are left, and
// they show in the loss alone: gradients are 0.93 to 1.0 times as far as autocast's, of which one way is up to 1.07 times as far
// as the other. Without the key it is 1.05 (qwen3_qk_norm) to 1.32 (gpt2).
TEST_P(Bfloat16, WithFloat32NormsAndStreamIsAsNearAsAutocast) {
    const Distances mine = ours(GetParam(), kLikeAutocast, kSeeds);
    record(mine);
    EXPECT_EQ(farther(mine, pytorch(GetParam(), {"rounded sdpa", "autocast eager", "autocast sdpa"})), "");
    std::vector<double> autocast;
    for (const char* way : {"autocast eager", "autocast sdpa"}) {
        const std::vector<double> runs = pytorch(GetParam(), {way}).at("gradients");
        autocast.insert(autocast.end(), runs.begin(), runs.begin() + kGradientSeeds);
    }
    EXPECT_LE(rms(mine.at("gradients")), 1.02 * rms(autocast));
}

TEST_P(Bfloat16, OnFourRanks) {
    const Distances mine = ours(GetParam(), kFourRanksInBfloat16, kGradientSeeds);
    record(mine);
    EXPECT_EQ(farther(mine, pytorch(GetParam(), {"cast sdpa"})), "");
}

// ---- what the comparison is worth

int64_t elements(const runtime::Produced& p) {
    const ir::Routine& r = *p.routine;
    int64_t n = 1;
    for (ir::DimId d : r.tensors[static_cast<size_t>(p.tensor)].dims) n *= r.dims[static_cast<size_t>(d)].size;
    return n;
}

// One element after the other of tensors of such a name, as soon as they are made.
template <class T>
Watcher spoil(const std::function<bool(std::string_view)>& name, const std::function<T(T)>& change) {
    return [=](const runtime::Produced& p) {
        const ir::Tensor& t = p.routine->tensors[static_cast<size_t>(p.tensor)];
        if (bytes_of(t.dtype) != sizeof(T) || t.dtype == Dtype::I32 || !name(t.name)) return;
        std::vector<T> x(static_cast<size_t>(elements(p)));
        const size_t bytes = x.size() * sizeof(T);
        device::Device& device = p.queue->device();
        device.read(*p.queue, p.address, static_cast<int64_t>(bytes),
                    [&](const char* from) { std::memcpy(x.data(), from, bytes); });
        for (T& value : x) value = change(value);
        device.write(*p.queue, const_cast<void*>(p.address), static_cast<int64_t>(bytes),
                     [&](char* to) { std::memcpy(to, x.data(), bytes); });
    };
}

// bfloat16 with so many bits fewer.
std::function<Bf16(Bf16)> coarser(int bits) {
    return [bits](Bf16 x) {
        x.bits = static_cast<uint16_t>((x.bits + (1 << (bits - 1))) & ~((1 << bits) - 1));
        return x;
    };
}
const std::function<float(float)> kRounded = [](float x) { return static_cast<float>(Bf16(x)); };

std::function<bool(std::string_view)> called(std::vector<std::string> names) {
    return [names](std::string_view name) {
        return std::any_of(names.begin(), names.end(),
                           [&](const std::string& n) { return name == n || name.starts_with(n + "."); });
    };
}

std::string defect(const std::string& name, const Watcher& watcher) {
    return farther(ours(name, kBfloat16, kGradientSeeds, watcher), pytorch(name, {"cast sdpa"}));
}

TEST_P(Bfloat16, SeesALossThatIsBfloat16) {
    const std::string seen = defect(GetParam(), spoil<float>(called({"loss"}), kRounded));
    EXPECT_TRUE(seen.starts_with("first_loss")) << seen;
}
TEST_P(Bfloat16, SeesNormsThatRoundTwoBitsTooEarly) {
    EXPECT_NE(defect(GetParam(), spoil<Bf16>(called({"n1", "n2", "n"}), coarser(2))), "");
}
TEST(Bfloat16Defects, NormsThatRoundABitTooEarly) {
    const std::string seen = defect("qwen2_bias", spoil<Bf16>(called({"n1", "n2", "n"}), coarser(1)));
    EXPECT_TRUE(seen.starts_with("gradients")) << seen;
}
TEST(Bfloat16Defects, AResidualStreamThatIsABitShorter) {
    const std::string seen = defect("llama_gqa", spoil<Bf16>(called({"x1", "y"}), coarser(1)));
    EXPECT_TRUE(seen.starts_with("gradients")) << seen;
}

}  // namespace
}  // namespace lockstep::testing
