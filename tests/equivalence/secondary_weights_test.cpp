// A second copy of the weights, split over fewer ranks than they are and fetched once a step: it changes no bit, its fetch alone
// crosses hosts, and a copy that is stale, missing or read too early is refused.
#include <gtest/gtest.h>

#include <algorithm>

#include "check/check.h"
#include "compile/traffic.h"
#include "tests/compile/recipes.h"
#include "tests/equivalence/draw.h"
#include "tests/equivalence/edit.h"
#include "tests/equivalence/run.h"

namespace lockstep::testing {
namespace {

compile::Recipe recipe_of_two_nodes(const Settings& settings) {
    Settings all = {{"parallelism.data_parallel_shard_degree", "4"},
                    {"cluster.ranks_per_node", "2"},
                    {"model.n_layers", "3"},
                    {"training.global_batch_size", "24"},
                    {"training.local_batch_size", "2"}};
    all.insert(all.end(), settings.begin(), settings.end());
    return small_recipe(all);
}

TEST(SecondaryWeights, ChangeNoBit) {
    const std::vector<Settings> some = {
        {},
        {{"parallelism.prefetch", "0"}, {"training.mixed_precision_param", "bfloat16"}},
        {{"parallelism.prefetch", "3"}, {"activation_checkpoint.mode", "full"}, {"runtime.comm_thread", "on"}},
        {{"parallelism.pipeline_parallel_degree", "2"},
         {"parallelism.pipeline_parallel_schedule", "Interleaved1F1B"},
         {"parallelism.pipeline_parallel_layers_per_stage", "1"},
         {"model.n_layers", "4"},
         {"parallelism.fsdp_reshard_after_forward", "always"}}};
    // Of two replicas of two ranks, so that both ways have the same groups of ranks, whose sums have one order.
    for (Settings settings : some) {
        settings.insert(settings.end(), {{"parallelism.data_parallel_shard_degree", "2"},
                                         {"parallelism.data_parallel_replicate_degree", "2"},
                                         {"partition.weights", "world"},
                                         {"partition.gradients", "world"},
                                         {"partition.optimizer", "world"}});
        const Outcome without = run(recipe_of_two_nodes(settings), Backend::Cpu, 3);
        settings.push_back({"partition.secondary_weights", "node"});
        const compile::Recipe recipe = recipe_of_two_nodes(settings);
        const compile::Compiled compiled = compile_recipe(recipe, Backend::Cpu);
        EXPECT_EQ(compiled.layout.partition.secondary, 2);
        std::string where;
        EXPECT_EQ(difference(without, run(recipe, compiled, 3), &where), 0) << where;
    }
}

// Validation between steps fetches a copy of its own. The parameter: the first seed of its layouts.
class SecondaryWeightsOf : public ::testing::TestWithParam<int> {};

TEST_P(SecondaryWeightsOf, TrainAndValidateAsOneRank) {
    const auto is_wanted = [](const compile::Recipe& r) {
        return r.flag("validation.enable") && !r.text("partition.secondary_weights").empty();
    };
    constexpr int kSteps = 2;
    for (int counted = 0, seed = GetParam(); counted < 17; ++seed) {
        const std::optional<Draw> d = draw(static_cast<uint64_t>(seed), Dtype::F64, false, is_wanted);
        if (!d || d->compiled.layout.partition.secondary == 0) continue;
        ++counted;
        EXPECT_EQ(refusal(d->compiled), "") << "seed " << seed;
        const Outcome one = run(one_rank(d->recipe), Backend::Reference, kSteps), layout = run(d->recipe, d->compiled, kSteps);
        ASSERT_EQ(layout.heldout_losses.size(), 2U);
        std::string where;
        EXPECT_LE(difference(one, layout, &where), 1e-10) << "at " << where << ", seed " << seed << "\n" << d->recipe.toml();
    }
}

INSTANTIATE_TEST_SUITE_P(Seeds, SecondaryWeightsOf, ::testing::Values(1, 10001, 20001, 30001));

// Presets hpz and zeropp over hosts of two and four ranks. Weights rounded to int8 are arithmetic of the recipe; gradients that
// cross ranks as int4 are not, and are compared with the same layout without validation.
TEST(SecondaryWeights, PresetsTrainAndValidateAsOneRank) {
    int layouts = 0;
    for (const char* preset : {"hpz", "zeropp"}) {
        for (const char* shard : {"4", "8"}) {
            for (const char* prefetch : {"0", "2"}) {
                for (const char* mode : {"none", "full"}) {
                    for (const char* thread : {"off", "on"}) {
                        Settings settings = {{"partition.preset", preset},
                                             {"parallelism.data_parallel_shard_degree", shard},
                                             {"parallelism.prefetch", prefetch},
                                             {"activation_checkpoint.mode", mode},
                                             {"runtime.comm_thread", thread},
                                             {"validation.enable", "true"},
                                             {"training.dtype", "float64"},
                                             {"training.global_batch_size", "16"},
                                             {"partition.quantized_weights", std::string(preset) == "hpz" ? "none" : "int8"},
                                             {"partition.quantized_gradients", "none"}};
                        const compile::Recipe recipe = recipe_of_two_nodes(settings);
                        const compile::Compiled compiled = compile_recipe(recipe, Backend::Reference);
                        EXPECT_GT(compiled.layout.partition.secondary, 0);
                        EXPECT_EQ(refusal(compiled), "") << recipe.toml();
                        const Outcome one = run(one_rank(recipe), Backend::Reference, 2);
                        std::string where;
                        EXPECT_LE(difference(one, run(recipe, compiled, 2), &where), 1e-10) << where << "\n" << recipe.toml();
                        ++layouts;
                    }
                }
            }
        }
    }
    EXPECT_EQ(layouts, 32);
    for (const char* shard : {"4", "8"}) {
        Settings settings = {{"partition.preset", "zeropp"}, {"parallelism.data_parallel_shard_degree", shard}};
        const Outcome without = run(recipe_of_two_nodes(settings), Backend::Cpu, 3);
        settings.push_back({"validation.enable", "true"});
        const Outcome with = run(recipe_of_two_nodes(settings), Backend::Cpu, 3);
        EXPECT_EQ(with.heldout_losses.size(), 2U);
        EXPECT_EQ(difference(without, with), 0);
    }
}

TEST(SecondaryWeights, CrossHostsOnceAStep) {
    const mesh::Topology topology = {{0, 0, 1, 1}, 1};
    const auto bytes = [&](const char* preset, const char* batch) {
        const compile::Recipe recipe = recipe_of_two_nodes(
            {{"partition.preset", preset}, {"partition.reduce_gradients", "step"}, {"training.global_batch_size", batch}});
        return compile::bytes_by_host(compile_recipe(recipe, Backend::Cpu, {}, {topology, 0}), topology);
    };
    EXPECT_EQ(bytes("hpz", "8"), bytes("hpz", "64"));  // 1 microbatch, and 8
    EXPECT_GT(bytes("zero3", "64")[0], 4 * bytes("hpz", "64")[0]);
}

bool is(const ir::Program& p, const ir::Call& c, ir::RoutineKind kind) { return p.routines[c.routine].kind == kind; }

// Moves the first fetch of the training step to the position that `to` gives.
template <class To>
void move_fetch(ir::Program& p, const To& to) {
    std::vector<ir::Call>& calls = train_calls(p);
    const auto fetch = std::find_if(calls.begin(), calls.end(), [&](const auto& c) { return is(p, c, ir::RoutineKind::Fetch); });
    ASSERT_NE(fetch, calls.end());
    const auto from = static_cast<size_t>(fetch - calls.begin()), at = static_cast<size_t>(to(calls, from));
    std::vector<size_t> order;
    for (size_t i = 0; i < calls.size(); ++i) {
        if (i != from) order.push_back(i);
        if (i == at) order.push_back(from);
    }
    reorder(calls, order);
}

TEST(SecondaryWeights, AreRefusedWhereTheyAreNotFresh) {
    const compile::Compiled compiled = compile_recipe(recipe_of_two_nodes({{"partition.preset", "hpz"}}), Backend::Cpu);
    const auto refusal = [&](const std::function<void(ir::Program&)>& edit) {
        ir::Program p = compiled.programs[0];
        edit(p);
        const std::vector<const ir::Program*> ranks(static_cast<size_t>(compiled.layout.ranks), &p);
        const auto no = check::prove(ranks);
        return no ? no->message : "";
    };
    EXPECT_EQ(refusal([](ir::Program&) {}), "");
    const std::string missing = refusal([](ir::Program& p) {
        remove_calls(p, [](const ir::Routine& r, const ir::Call&) { return r.kind == ir::RoutineKind::Fetch; });
    });
    EXPECT_NE(missing.find("gather"), std::string::npos) << missing;
    EXPECT_NE(missing.find("secondary"), std::string::npos) << missing;
    const std::string behind_its_reader = refusal([](ir::Program& p) {
        move_fetch(p, [&](const std::vector<ir::Call>& calls, size_t from) {
            const auto reader = std::find_if(calls.begin() + static_cast<long>(from), calls.end(), [&](const ir::Call& c) {
                return is(p, c, ir::RoutineKind::Gather) && p.routines[c.routine].unit == p.routines[calls[from].routine].unit;
            });
            return reader - calls.begin();
        });
    });
    EXPECT_NE(behind_its_reader.find("secondary"), std::string::npos) << behind_its_reader;
    const std::string behind_the_update = refusal(
        [](ir::Program& p) { move_fetch(p, [&](const std::vector<ir::Call>& calls, size_t) { return calls.size() - 1; }); });
    EXPECT_NE(behind_the_update, "");
    // A copy that is fetched again from what the step has changed, with nobody who reads it: stale the next time.
    const std::string twice = refusal([](ir::Program& p) {
        std::vector<ir::Call>& calls = train_calls(p);
        const auto fetch =
            std::find_if(calls.begin(), calls.end(), [&](const auto& c) { return is(p, c, ir::RoutineKind::Fetch); });
        ir::Call again = *fetch;
        again.waits = {static_cast<int>(calls.size()) - 1};
        calls.push_back(again);
    });
    EXPECT_NE(twice.find("reads weights after their update"), std::string::npos) << twice;
}

}  // namespace
}  // namespace lockstep::testing
