// Islands: copies of the model that train apart and meet every so many steps. k islands are held to k runs on one rank, which
// code of the test joins as DiLoCo says (arXiv 2311.08105, algorithm 1; fragments: 2501.18512).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "tests/compile/recipes.h"
#include "tests/equivalence/draw.h"
#include "tests/equivalence/run.h"

namespace lockstep::testing {
namespace {

constexpr int64_t kBatch = 12;  // of all islands

struct Meetings {
    int64_t islands = 2, every = 2, fragments = 1;
    double lr = 0.7, momentum = 0.9, alpha = 0;
};

compile::Recipe recipe_of(const Settings& settings) {
    Settings all = {{"training.dtype", "float64"},
                    {"model.n_layers", "4"},
                    {"training.local_batch_size", "1"},
                    {"training.global_batch_size", std::to_string(kBatch)}};
    all.insert(all.end(), settings.begin(), settings.end());
    return small_recipe(all);
}

compile::Recipe with_islands(compile::Recipe recipe, const Meetings& m) {
    recipe.set("fault_tolerance.enable", "true");
    recipe.set("fault_tolerance.semi_sync_method", "diloco");
    recipe.set("fault_tolerance.group_size", std::to_string(m.islands));
    recipe.set("fault_tolerance.sync_steps", std::to_string(m.every));
    recipe.set("fault_tolerance.num_fragments", std::to_string(m.fragments));
    recipe.set("fault_tolerance.outer_lr", fmt::format("{}", m.lr));
    recipe.set("fault_tolerance.outer_momentum", fmt::format("{}", m.momentum));
    recipe.set("fault_tolerance.fragment_update_alpha", fmt::format("{}", m.alpha));
    return recipe;
}

// What one of several islands reads: its part of the samples of each step.
class PartOfSteps : public data::Source {
public:
    PartOfSteps(const data::Source& all, int64_t island, int64_t islands) : all_(all), island_(island), islands_(islands) {}
    int seq_len() const override { return all_.seq_len(); }
    int vocab_size() const override { return all_.vocab_size(); }
    void sample(int64_t seen, std::span<int32_t> ids, std::span<int32_t> targets, std::span<int32_t> positions,
                std::span<int32_t> documents) const override {
        const int64_t each = kBatch / islands_, step = seen / each;
        all_.sample(step * kBatch + island_ * each + seen % each, ids, targets, positions, documents);
    }

private:
    const data::Source& all_;
    int64_t island_, islands_;
};

// The fragment of a parameter: embedding, four layers, head.
int64_t fragment_of(const std::string& name, int64_t fragments) {
    constexpr int64_t kBlocks = 6;
    const size_t layer = name.find("layers.");
    const int64_t block = layer != std::string::npos                ? 1 + std::stoll(name.substr(layer + 7))
                          : name.find("embed") != std::string::npos ? 0
                                                                    : kBlocks - 1;
    return block * fragments / kBlocks;
}

// k trainers on one rank each, joined by hand; in the end the first one's weights.
Outcome joined(const compile::Recipe& recipe, const Meetings& m, int steps) {
    compile::Recipe one = one_rank(recipe);
    one.set("training.global_batch_size", std::to_string(kBatch / m.islands));
    one.set("training.local_batch_size", std::to_string(kBatch / m.islands));
    const compile::Compiled compiled = compile_recipe(one, Backend::Reference);
    const data::SyntheticSource data = synthetic_data(one, compiled);
    const compile::Config config = compile::config_of(one);
    std::vector<std::unique_ptr<PartOfSteps>> sources;
    std::vector<std::unique_ptr<runtime::Trainer>> trainers;
    for (int64_t i = 0; i < m.islands; ++i) {
        sources.push_back(std::make_unique<PartOfSteps>(data, i, m.islands));
        trainers.push_back(std::make_unique<runtime::Trainer>(config, compiled, *sources.back()));
        start(*trainers.back(), one);
    }
    const auto weights_of = [&](size_t i) { return trainers[i]->state(runtime::saved_as("{}")); };
    runtime::GlobalTensors anchor = weights_of(0), momentum = anchor;
    for (auto& [name, values] : momentum) std::fill(values.begin(), values.end(), 0.0);
    Outcome out;
    for (int step = 1; step <= steps; ++step) {
        double loss = 0, norm = 0;
        for (const auto& trainer : trainers) {
            const runtime::StepResult r = trainer->step();
            loss += r.loss / static_cast<double>(m.islands), norm = std::max(norm, r.grad_norm);
        }
        out.losses.push_back(loss), out.grad_norms.push_back(norm);
        std::vector<runtime::GlobalTensors> own;
        for (size_t i = 0; i < trainers.size(); ++i) own.push_back(weights_of(i));
        const auto meets = [&](const std::string& name) {
            const int64_t f = fragment_of(name, m.fragments);
            return step % m.every == (f + 1) * m.every / m.fragments % m.every;
        };
        for (auto& [name, agreed] : anchor) {
            for (size_t k = 0; meets(name) && k < agreed.size(); ++k) {
                double changed = 0;
                for (const runtime::GlobalTensors& w : own)
                    changed += (agreed[k] - w.at(name)[k]) / static_cast<double>(m.islands);
                double& b = momentum[name][k];
                b = m.momentum * b + changed;
                agreed[k] -= m.lr * (changed + m.momentum * b);
                for (runtime::GlobalTensors& w : own) w[name][k] = agreed[k] + m.alpha * (w[name][k] - agreed[k]);
            }
        }
        for (size_t i = 0; i < trainers.size(); ++i) {
            trainers[i]->fill_weights([&](const ir::Parameter& p, int64_t instance, int64_t at) {
                return own[i].at(runtime::global_name(p, instance))[static_cast<size_t>(at)];
            });
        }
    }
    out.weights = weights_of(0);
    return out;
}

struct Case {
    Meetings meetings;
    Settings layout;
};

const std::vector<Case>& cases() {
    const char *const shard = "parallelism.data_parallel_shard_degree", *const preset = "partition.preset";
    static const std::vector<Case> all = {
        {{}, {}},
        {{.islands = 3, .every = 3, .momentum = 0, .alpha = 0.25}, {{shard, "2"}}},
        {{.every = 4, .fragments = 2}, {{shard, "2"}, {preset, "zero1"}, {"parallelism.data_parallel_replicate_degree", "2"}}},
        {{.every = 3, .fragments = 3, .lr = 1, .alpha = 0.5}, {{shard, "3"}, {"parallelism.prefetch", "2"}}},
        {{}, {{shard, "4"}, {preset, "three_level"}, {"cluster.ranks_per_package", "2"}, {"cluster.ranks_per_node", "4"}}},
        {{}, {{shard, "4"}, {preset, "hpz"}, {"cluster.ranks_per_node", "2"}}},
        {{.fragments = 2}, {{"parallelism.tensor_parallel_degree", "2"}, {"activation_checkpoint.mode", "full"}}},
        {{.fragments = 2},
         {{"parallelism.pipeline_parallel_degree", "2"},
          {"parallelism.pipeline_parallel_schedule", "1F1B"},
          {shard, "2"},
          {"model.tie_embeddings", "true"}}},
    };
    return all;
}

TEST(Islands, AreRunsOnOneRankThatMeet) {
    constexpr int kSteps = 6;
    for (const Case& c : cases()) {
        const compile::Recipe alone = recipe_of(c.layout);
        const compile::Recipe recipe = with_islands(alone, c.meetings);
        const compile::Compiled compiled = compile_recipe(recipe, Backend::Reference);
        EXPECT_EQ(refusal(compiled), "") << recipe.toml();
        EXPECT_EQ(compiled.layout.mesh.islands(), c.meetings.islands);
        const Outcome expected = joined(alone, c.meetings, kSteps);
        std::string where;
        EXPECT_LT(difference(expected, run(recipe, compiled, kSteps), &where), 1e-10) << where << "\n" << recipe.toml();
    }
}

// Weights that are averaged are those of an outer optimizer with a rate of 1 and without momentum.
TEST(Islands, OfLocalSgdAverage) {
    compile::Recipe recipe = with_islands(recipe_of({}), {.islands = 2, .every = 2, .lr = 1, .momentum = 0});
    const Outcome expected = joined(recipe_of({}), {.islands = 2, .every = 2, .lr = 1, .momentum = 0}, 4);
    recipe = recipe_of({});
    recipe.set("fault_tolerance.enable", "true");
    recipe.set("fault_tolerance.semi_sync_method", "local_sgd");
    recipe.set("fault_tolerance.group_size", "2");
    recipe.set("fault_tolerance.sync_steps", "2");
    EXPECT_LT(difference(expected, run(recipe, Backend::Reference, 4)), 1e-10);
}

// What crosses islands is int8: near what it is, and a quarter of the bytes.
TEST(Islands, MeetQuantized) {
    for (const Case& c : cases()) {
        compile::Recipe recipe = with_islands(recipe_of(c.layout), c.meetings);
        const Outcome exact = run(recipe, Backend::Reference, 4);
        recipe.set("fault_tolerance.should_quantize", "true");
        const compile::Compiled compiled = compile_recipe(recipe, Backend::Reference);
        EXPECT_EQ(refusal(compiled), "") << recipe.toml();
        const Outcome other = run(recipe, compiled, 4);
        EXPECT_GT(difference(exact, other), 0);
        for (size_t step = 0; step < exact.losses.size(); ++step)
            EXPECT_NEAR(other.losses[step] / exact.losses[step], 1, 0.01) << recipe.toml();
    }
}

}  // namespace
}  // namespace lockstep::testing
