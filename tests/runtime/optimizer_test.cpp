// Every optimizer against its published formula, in double and written here once more. The gradient of a step comes from a step
// of SGD with learning rate 1, without momentum or decay, on the same weights and samples.
#include <gtest/gtest.h>

#include <cmath>

#include "base/bfloat16.h"
#include "runtime/trainer.h"
#include "tests/base/plain.h"
#include "tests/compile/recipes.h"
#include "tests/equivalence/run.h"

namespace lockstep::testing {
namespace {

using Tensor = std::vector<double>;

constexpr double kLr = 3e-2, kDecay = 0.2, kBeta1 = 0.9, kBeta2 = 0.95, kEps = 1e-5, kMomentum = 0.9;
constexpr int64_t kHidden = 12, kSteps = 3;

compile::Recipe recipe(bool gpt2, const Settings& more) {
    compile::Recipe r = plain(compile::Recipe::from_text(
        std::string("[model]\n") + (gpt2 ? "name = \"gpt2\"\nn_positions = 8\n" : "n_kv_heads = 2\nrope_scaling_factor = 1.0\n") +
            "dim = 12\nn_layers = 2\nn_heads = 4\nhead_dim = 4\nffn_dim = 20\nvocab_size = 17\n"
            "[training]\nseq_len = 8\nlocal_batch_size = 2\nsteps = 10\nmax_norm = 0.0\ndtype = \"float64\"\n"
            "[lr_scheduler]\nwarmup_steps = 0\nmin_lr_factor = 1.0\n",
        "test"));
    for (const auto& [key, value] : more) r.set(key, value);
    return r;
}

struct Training {
    Training(bool gpt2, const Settings& more)
        : r(recipe(gpt2, more)),
          compiled(compile_recipe(r, Backend::Reference)),
          data(synthetic_data(r, compiled)),
          trainer(compile::config_of(r), compiled, data) {}
    runtime::GlobalTensors weights() { return trainer.state(runtime::saved_as("{}")); }

    compile::Recipe r;
    compile::Compiled compiled;
    data::SyntheticSource data;
    runtime::Trainer trainer;
};

// Of the same step as `run` is about to take.
runtime::GlobalTensors gradient(Training& probe, Training& run) {
    const runtime::GlobalTensors before = run.weights();
    probe.trainer.fill_weights(values_in(before));
    probe.trainer.set_progress(run.trainer.progress());
    probe.trainer.step();
    runtime::GlobalTensors g = probe.weights();
    for (auto& [name, values] : g) {
        for (size_t i = 0; i < values.size(); ++i) values[i] = before.at(name)[i] - values[i];
    }
    return g;
}

bool ends(const std::string& name, std::string_view with) { return name.ends_with(with); }
bool is_matrix(const std::string& name) {
    const bool hidden = name.find(".layers.") != std::string::npos || name.find(".h.") != std::string::npos;
    return hidden && ends(name, ".weight") && name.find("norm") == std::string::npos && name.find("ln_") == std::string::npos;
}
double decay_of(const std::string& name) {
    const bool norm = name.find("norm") != std::string::npos || name.find("ln_") != std::string::npos;
    return norm || ends(name, ".bias") ? 0 : kDecay;
}
size_t rows_of(const std::string& name, size_t elements) {
    const bool gpt2 = name.find("transformer.") == 0,
               into_stream = ends(name, "o_proj.weight") || ends(name, "down_proj.weight") || ends(name, "c_proj.weight");
    return gpt2 == into_stream ? elements / kHidden : kHidden;  // transformers stores GPT-2's matrices the other way
}

// Newton and Schulz's iteration as in torch.optim.Muon, on X [n, m] row by row.
Tensor orthogonalized(Tensor x, size_t n, size_t m) {
    double norm = 0;
    for (double v : x) norm += v * v;
    for (double& v : x) v /= std::max(std::sqrt(norm), 1e-7);
    const bool tall = n > m;
    const size_t s = tall ? m : n, l = tall ? n : m;
    const auto at = [&](size_t i, size_t k) -> double& { return tall ? x[k * m + i] : x[i * m + k]; };
    for (int step = 0; step < 5; ++step) {
        Tensor a(s * s, 0), b(s * s, 0);
        for (size_t i = 0; i < s; ++i) {
            for (size_t j = 0; j < s; ++j) {
                for (size_t k = 0; k < l; ++k) a[i * s + j] += at(i, k) * at(j, k);
            }
        }
        for (size_t i = 0; i < s; ++i) {
            for (size_t j = 0; j < s; ++j) {
                for (size_t k = 0; k < s; ++k) b[i * s + j] += 2.0315 * a[i * s + k] * a[k * s + j];
                b[i * s + j] += -4.7750 * a[i * s + j];
            }
        }
        Tensor next(x.size(), 0);
        for (size_t i = 0; i < s; ++i) {
            for (size_t k = 0; k < l; ++k) {
                double sum = 3.4445 * at(i, k);
                for (size_t j = 0; j < s; ++j) sum += b[i * s + j] * at(j, k);
                next[tall ? k * m + i : i * m + k] = sum;
            }
        }
        x = next;
    }
    return x;
}

struct Remembered {
    Tensor first, second;  // a momentum buffer is `first`
};

void adam(Tensor& w, const Tensor& g, Remembered& s, double decay, int64_t t, bool coupled) {
    for (size_t i = 0; i < w.size(); ++i) {
        const double grad = g[i] + (coupled ? decay * w[i] : 0);
        s.first[i] = kBeta1 * s.first[i] + (1 - kBeta1) * grad;
        s.second[i] = kBeta2 * s.second[i] + (1 - kBeta2) * grad * grad;
        const double m = s.first[i] / (1 - std::pow(kBeta1, t)), v = s.second[i] / (1 - std::pow(kBeta2, t));
        w[i] = w[i] * (coupled ? 1 : 1 - kLr * decay) - kLr * m / (std::sqrt(v) + kEps);
    }
}

void sgd(Tensor& w, const Tensor& g, Remembered& s, double decay, double momentum, bool nesterov) {
    for (size_t i = 0; i < w.size(); ++i) {
        const double grad = g[i] + decay * w[i];
        s.first[i] = momentum * s.first[i] + grad;
        w[i] -= kLr * (nesterov ? grad + momentum * s.first[i] : s.first[i]);
    }
}

void muon(Tensor& w, const Tensor& g, Remembered& s, double decay, size_t rows, bool nesterov, bool match) {
    const size_t columns = w.size() / rows;
    Tensor u(w.size());
    for (size_t i = 0; i < w.size(); ++i) {
        s.first[i] += (1 - kMomentum) * (g[i] - s.first[i]);
        u[i] = nesterov ? g[i] + kMomentum * (s.first[i] - g[i]) : s.first[i];
    }
    u = orthogonalized(u, rows, columns);
    const double r = static_cast<double>(rows), c = static_cast<double>(columns);
    const double ratio = match ? 0.2 * std::sqrt(std::max(r, c)) : std::sqrt(std::max(1.0, r / c));
    for (size_t i = 0; i < w.size(); ++i) w[i] = w[i] * (1 - kLr * decay) - kLr * ratio * u[i];
}

// The moments of a run that keeps them in bfloat16: exp_avg to the nearest, exp_avg_sq to one of the two next to it. `s` becomes
// what they are.
void expect_rounded(Remembered& s, const Tensor& first, const Tensor& second, const std::string& key) {
    for (size_t i = 0; i < first.size(); ++i) {
        EXPECT_EQ(first[i], static_cast<double>(Bf16(s.first[i]))) << key;
        int exponent = 0;
        std::frexp(s.second[i], &exponent);
        EXPECT_LT(std::abs(second[i] - s.second[i]), std::ldexp(1.0, std::max(exponent - 8, -133))) << key;
        EXPECT_EQ(second[i], static_cast<double>(Bf16(second[i]))) << key;
    }
    s = {first, second};
}

struct Case {
    const char *name, *optimizer;
    Settings keys;
    bool gpt2 = false;
};
void PrintTo(const Case& c, std::ostream* stream) { *stream << c.name; }

const Case kCases[] = {
    {"AdamW", "AdamW", {}},
    {"AdamWInBfloat16", "AdamW", {{"optimizer.implementation", "fused_opt_states_bf16"}}},
    {"AdamInBfloat16", "Adam", {{"optimizer.implementation", "fused_opt_states_bf16"}}},
    {"Adam", "Adam", {}},
    {"AdamOfGpt2", "Adam", {}, true},
    {"Sgd", "SGD", {{"optimizer.nesterov", "false"}}},
    {"SgdNesterov", "SGD", {}},
    {"SgdWithoutMomentum", "SGD", {{"optimizer.momentum", "0.0"}}},
    {"Muon", "Muon", {}},
    {"MuonWithoutNesterov", "Muon", {{"optimizer.nesterov", "false"}}},
    {"MuonOriginalRate", "Muon", {{"optimizer.muon_adjust_lr_fn", "original"}}},
    {"MuonOfGpt2", "Muon", {}, true},
    {"MuonOfGpt2OriginalRate", "Muon", {{"optimizer.muon_adjust_lr_fn", "original"}}, true},
};

class Optimizers : public ::testing::TestWithParam<Case> {};

TEST_P(Optimizers, UpdateAsTheirFormulasSay) {
    const Case& c = GetParam();
    Settings keys = {{"optimizer.name", c.optimizer},
                     {"optimizer.lr", std::to_string(kLr)},
                     {"optimizer.weight_decay", std::to_string(kDecay)},
                     {"optimizer.beta1", std::to_string(kBeta1)},
                     {"optimizer.beta2", std::to_string(kBeta2)},
                     {"optimizer.eps", std::to_string(kEps)},
                     {"optimizer.momentum", std::to_string(kMomentum)}};
    keys.insert(keys.end(), c.keys.begin(), c.keys.end());
    Training run(c.gpt2, keys);
    Training probe(
        c.gpt2,
        {{"optimizer.name", "SGD"}, {"optimizer.momentum", "0.0"}, {"optimizer.weight_decay", "0.0"}, {"optimizer.lr", "1.0"}});
    const std::string name = c.optimizer;
    const bool narrow = run.r.text("optimizer.implementation") != "fused", nesterov = run.r.flag("optimizer.nesterov"),
               match = run.r.text("optimizer.muon_adjust_lr_fn") == "match_rms_adamw";
    const double momentum = run.r.number("optimizer.momentum");
    // Larger than at the start of a training, so that no gradient is as small as the rounding of the weights.
    run.trainer.fill_weights([](const ir::Parameter& p, int64_t instance) {
        const double frequency = 0.7 * static_cast<double>(1 + p.key.size() + 7 * static_cast<size_t>(instance));
        return [frequency](int64_t i) { return 0.4 * std::sin(frequency * static_cast<double>(i + 1)); };
    });
    runtime::GlobalTensors want = run.weights();
    std::map<std::string, Remembered> states;
    for (const auto& [key, w] : want) states[key] = {Tensor(w.size(), 0), Tensor(w.size(), 0)};
    for (int64_t t = 1; t <= kSteps; ++t) {
        const runtime::GlobalTensors g = gradient(probe, run);
        run.trainer.step();
        const runtime::GlobalTensors got = run.weights(), first = run.trainer.state(runtime::saved_as("exp_avg.{}")),
                                     second = run.trainer.state(runtime::saved_as("exp_avg_sq.{}"));
        for (auto& [key, w] : want) {
            Remembered& s = states[key];
            const double decay = decay_of(key);
            if (name == "SGD") sgd(w, g.at(key), s, decay, momentum, nesterov);
            else if (name == "Muon" && is_matrix(key)) muon(w, g.at(key), s, decay, rows_of(key, w.size()), nesterov, match);
            else adam(w, g.at(key), s, decay, t, name == "Adam");
            double farthest = 0;
            for (size_t i = 0; i < w.size(); ++i) farthest = std::max(farthest, std::abs(w[i] - got.at(key)[i]));
            if (narrow) expect_rounded(s, first.at(key), second.at(key), key);
            EXPECT_LE(farthest, 1e-10) << key << " in step " << t;
        }
        want = got;  // so that differences do not add up over the steps: each step is held to 1e-10
    }
}
INSTANTIATE_TEST_SUITE_P(All, Optimizers, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

// What is not served by a rule has no state of it: a checkpoint and the memory hold neither twice.
TEST(OptimizerStates, MuonKeepsOneBufferOfMatricesAndTwoMomentsOfTheRest) {
    Training run(false, {{"optimizer.name", "Muon"}});
    for (const auto& [saved, of_matrices] :
         {std::pair{"momentum_buffer.{}", true}, {"exp_avg.{}", false}, {"exp_avg_sq.{}", false}}) {
        std::set<std::string> names;
        runtime::for_each_saved(run.compiled.programs,
                                [&, &saved = saved](const ir::State& s, const ir::Parameter& p, int64_t i) {
                                    if (s.saved == saved) names.insert(runtime::global_name(p, i));
                                });
        for (const auto& [name, values] : run.weights())
            EXPECT_EQ(names.contains(name), is_matrix(name) == of_matrices) << saved << name;
    }
}

TEST(OptimizerStates, AStepThatDoesNotCountChangesNothing) {
    for (const char* optimizer : {"Adam", "SGD", "Muon"}) {
        Training run(false, {{"optimizer.name", optimizer}});
        run.trainer.step();
        run.trainer.fill_weights([](const ir::Parameter& p, int64_t) {
            return [is_output = p.key == "output"](int64_t i) { return is_output && i == 3 ? NAN : 0.5; };
        });
        const runtime::GlobalTensors moments =
            run.trainer.state([](const ir::State& s) { return s.role == ir::StateRole::Moment; });
        EXPECT_FALSE(run.trainer.step().committed) << optimizer;
        const runtime::GlobalTensors after =
            run.trainer.state([](const ir::State& s) { return s.role == ir::StateRole::Moment; });
        EXPECT_EQ(moments, after) << optimizer;
        for (const auto& [name, values] : run.weights()) {
            for (double v : values) EXPECT_TRUE(v == 0.5 || std::isnan(v)) << optimizer << " " << name;
        }
    }
}

}  // namespace
}  // namespace lockstep::testing
