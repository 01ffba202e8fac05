// Islands: copies of the model that train apart and meet every few steps. k islands are held to k runs on one rank, which
// code of the test joins as DiLoCo says (arXiv 2311.08105, algorithm 1; fragments: 2501.18512).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <thread>

#include "comm/islands/service.h"
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

compile::Recipe recipe_of_islands(const Settings& settings) {
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
            trainers[i]->fill_weights(values_in(own[i]));
        }
    }
    out.weights = weights_of(0);
    return out;
}

struct IslandsCase {
    Meetings meetings;
    Settings layout;
};

const std::vector<IslandsCase>& cases() {
    const char *const shard = "parallelism.data_parallel_shard_degree", *const preset = "partition.preset";
    static const std::vector<IslandsCase> all = {
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
    for (const IslandsCase& c : cases()) {
        const compile::Recipe alone = recipe_of_islands(c.layout);
        const compile::Recipe recipe = with_islands(alone, c.meetings);
        const compile::Compiled compiled = compile_recipe(recipe, Backend::Reference);
        EXPECT_EQ(refusal(compiled), "") << recipe.toml();
        EXPECT_EQ(compiled.layout.mesh.islands(), c.meetings.islands);
        const Outcome expected = joined(alone, c.meetings, kSteps);
        std::string where;
        EXPECT_LT(difference(expected, run(recipe, compiled, kSteps), &where), 1e-10) << where << "\n" << recipe.toml();
    }
}

// Islands as jobs of their own, each on threads of this process, which meet in the service of a launch; the first one's outcome,
// with the losses and norms of all.
Outcome as_jobs(const compile::Recipe& recipe, const Meetings& m, int steps) {
    comm::islands::Service service({{m.islands, 30}, "127.0.0.1", 0}, [](const std::string&) {});
    for (int64_t i = 0; i < m.islands; ++i) service.expect(i);
    std::vector<Outcome> all(static_cast<size_t>(m.islands));
    std::vector<std::thread> threads;
    for (int64_t i = 0; i < m.islands; ++i) {
        threads.emplace_back([&, i] {
            compile::Recipe own = recipe;
            own.set("fault_tolerance.replica_id", std::to_string(i));
            const compile::Compiled compiled = compile_recipe(own, Backend::Reference);
            EXPECT_EQ(refusal(compiled), "") << own.toml();
            EXPECT_EQ(compiled.layout.mesh.islands(), 1);
            const data::SyntheticSource data = synthetic_data(own, compiled);
            runtime::Trainer trainer(compile::config_of(own), compiled, data, nullptr, runtime::Backend{}, service.invitation());
            start(trainer, own);
            EXPECT_FALSE(trainer.join_islands());
            go_on(trainer, steps, all[static_cast<size_t>(i)]);
        });
    }
    for (std::thread& t : threads) t.join();
    Outcome out = all[0];
    for (size_t step = 0; step < out.losses.size(); ++step) {
        out.losses[step] = out.grad_norms[step] = 0;
        for (const Outcome& o : all) {
            out.losses[step] += o.losses[step] / static_cast<double>(all.size());
            out.grad_norms[step] = std::max(out.grad_norms[step], o.grad_norms[step]);
        }
    }
    return out;
}

TEST(Islands, AsJobsOfTheirOwnAreTheSame) {
    constexpr int kSteps = 6;
    for (const IslandsCase& c : cases()) {
        const compile::Recipe alone = recipe_of_islands(c.layout), recipe = with_islands(alone, c.meetings);
        std::string where;
        EXPECT_LT(difference(joined(alone, c.meetings, kSteps), as_jobs(recipe, c.meetings, kSteps), &where), 1e-10)
            << where << "\n"
            << recipe.toml();
    }
}

TEST(Islands, AsJobsMeetQuantized) {
    for (const IslandsCase& c : {cases()[1], cases()[4], cases()[6]}) {
        compile::Recipe recipe = with_islands(recipe_of_islands(c.layout), c.meetings);
        const Outcome exact = run(recipe, Backend::Reference, 4);
        recipe.set("fault_tolerance.should_quantize", "true");
        const Outcome other = as_jobs(recipe, c.meetings, 4);
        EXPECT_GT(difference(exact, other), 0);
        for (size_t step = 0; step < exact.losses.size(); ++step)
            EXPECT_NEAR(other.losses[step] / exact.losses[step], 1, 0.01) << recipe.toml();
    }
}

// An island that begins behind the others takes the state of one of them, to the bit, and goes on with its own data.
TEST(Islands, OneThatIsBehindTakesAState) {
    const Meetings m{.islands = 2, .every = 2, .fragments = 2};
    const compile::Recipe recipe = with_islands(recipe_of_islands({{"parallelism.data_parallel_shard_degree", "2"}}), m);
    comm::islands::Service service({{2, 30}, "127.0.0.1", 0}, [](const std::string&) {});
    std::vector<Outcome> all(2);
    std::vector<int64_t> taken_at(2, -1);
    std::vector<runtime::GlobalTensors> moments(2);
    std::vector<std::thread> threads;
    for (int64_t i = 0; i < 2; ++i) service.expect(i);
    for (int64_t i = 0; i < 2; ++i) {
        threads.emplace_back([&, i] {
            const auto k = static_cast<size_t>(i);
            compile::Recipe own = recipe;
            own.set("fault_tolerance.replica_id", std::to_string(i));
            const compile::Compiled compiled = compile_recipe(own, Backend::Reference);
            const data::SyntheticSource data = synthetic_data(own, compiled);
            runtime::Trainer trainer(compile::config_of(own), compiled, data, nullptr, runtime::Backend{}, service.invitation());
            start(trainer, own);
            if (i == 0) trainer.set_progress({.steps = 10, .samples_seen = 10 * kBatch, .tokens_seen = 1});
            if (trainer.join_islands()) taken_at[k] = trainer.progress().steps;
            moments[k] = trainer.state(runtime::saved_as("exp_avg.{}"));
            EXPECT_EQ(trainer.progress().samples_seen, 10 * kBatch);
            go_on(trainer, 4, all[k]);
        });
    }
    for (std::thread& t : threads) t.join();
    EXPECT_EQ(taken_at, (std::vector<int64_t>{-1, 10}));
    EXPECT_EQ(moments[0], moments[1]);
    EXPECT_NE(all[0].losses, all[1].losses) << "their data are their own";
    // The fragment that has met last.
    EXPECT_EQ(all[0].weights.at("lm_head.weight"), all[1].weights.at("lm_head.weight"));
}

// Weights that are averaged are those of an outer optimizer with a rate of 1 and without momentum.
TEST(Islands, OfLocalSgdAverage) {
    compile::Recipe recipe = with_islands(recipe_of_islands({}), {.islands = 2, .every = 2, .lr = 1, .momentum = 0});
    const Outcome expected = joined(recipe_of_islands({}), {.islands = 2, .every = 2, .lr = 1, .momentum = 0}, 4);
    recipe = recipe_of_islands({});
    recipe.set("fault_tolerance.enable", "true");
    recipe.set("fault_tolerance.semi_sync_method", "local_sgd");
    recipe.set("fault_tolerance.group_size", "2");
    recipe.set("fault_tolerance.sync_steps", "2");
    EXPECT_LT(difference(expected, run(recipe, Backend::Reference, 4)), 1e-10);
}

// What crosses islands is int8: near what it is, and a quarter of the bytes.
TEST(Islands, MeetQuantized) {
    for (const IslandsCase& c : cases()) {
        compile::Recipe recipe = with_islands(recipe_of_islands(c.layout), c.meetings);
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
