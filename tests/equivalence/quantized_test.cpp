// Weights that cross ranks as int8: every layout computes with the same ones, and that is what the plan counts. Gradients that
// are exchanged as int8.
#include <gtest/gtest.h>

#include <algorithm>

#include "compile/traffic.h"
#include "ops/verify.h"
#include "runtime/replicas.h"
#include "tests/compile/recipes.h"
#include "tests/equivalence/draw.h"
#include "tests/equivalence/run.h"

namespace lockstep::testing {
namespace {

compile::Recipe quantized_recipe(const Settings& settings) {
    Settings all = {{"partition.quantized_weights", "int8"},
                    {"cluster.ranks_per_package", "2"},
                    {"cluster.ranks_per_node", "4"},
                    {"model.n_layers", "4"},
                    {"training.global_batch_size", "16"}};
    all.insert(all.end(), settings.begin(), settings.end());
    return small_recipe(all);
}

const std::vector<Settings>& layouts() {
    const char *const shard = "parallelism.data_parallel_shard_degree", *const preset = "partition.preset";
    static const std::vector<Settings> all = {
        {{shard, "4"}},
        {{shard, "8"}, {preset, "hpz"}},
        {{shard, "8"}, {preset, "mics"}, {"activation_checkpoint.mode", "full"}},
        {{shard, "8"}, {preset, "three_level"}, {"parallelism.prefetch", "2"}},
        {{shard, "2"}, {"parallelism.data_parallel_replicate_degree", "2"}, {preset, "hsdp"}},
        {{shard, "2"}, {"parallelism.pipeline_parallel_degree", "2"}, {"parallelism.pipeline_parallel_schedule", "1F1B"}}};
    return all;
}

TEST(QuantizedWeights, AreTheSameOnEveryLayout) {
    const Settings exact = {{"training.dtype", "float64"}};
    const Outcome one = run(one_rank(quantized_recipe(exact)), Backend::Reference, 3);
    Settings plain = exact;
    plain.push_back({"partition.quantized_weights", "none"});
    EXPECT_GT(difference(one, run(one_rank(quantized_recipe(plain)), Backend::Reference, 3)), 1e-5)
        << "it is arithmetic of the recipe";
    for (Settings settings : layouts()) {
        settings.insert(settings.end(), exact.begin(), exact.end());
        const compile::Recipe recipe = quantized_recipe(settings);
        const compile::Compiled compiled = compile_recipe(recipe, Backend::Reference);
        EXPECT_EQ(refusal(compiled), "");
        std::string where;
        EXPECT_LT(difference(one, run(recipe, compiled, 3), &where), 1e-10) << where << "\n" << recipe.toml();
    }
}

// Master weights in float32 and a copy in bfloat16, which each update renews, or each gather.
TEST(QuantizedWeights, TrainInMixedPrecision) {
    Settings mixed = {{"training.mixed_precision_param", "bfloat16"}};
    const Outcome one = run(one_rank(quantized_recipe(mixed)), Backend::Cpu, 3);
    for (Settings settings : layouts()) {
        settings.insert(settings.end(), mixed.begin(), mixed.end());
        const Outcome other = run(quantized_recipe(settings), Backend::Cpu, 3);
        for (size_t step = 0; step < one.losses.size(); ++step) EXPECT_NEAR(other.losses[step] / one.losses[step], 1, 3e-3);
    }
}

// What all ranks send in collectives of a kind, of a model whose matrices are many blocks.
double bytes_of_kind(const char* kind, Settings settings) {
    settings.insert(settings.end(),
                    {{"parallelism.data_parallel_shard_degree", "4"}, {"model.dim", "192"}, {"model.ffn_dim", "512"}});
    double bytes = 0;
    for (const compile::GroupTraffic& g : compile::traffic_of(compile_recipe(quantized_recipe(settings), Backend::Cpu), {})) {
        const auto at = g.bytes.find(kind);
        bytes += at == g.bytes.end() ? 0 : at->second;
    }
    return bytes;
}

// Half the bytes of bfloat16, and one for each block of 256.
TEST(QuantizedWeights, CrossRanksAsInt8) {
    const auto gathered = [](const char* quantized) {
        return bytes_of_kind("all_gather",
                             {{"training.mixed_precision_param", "bfloat16"}, {"partition.quantized_weights", quantized}});
    };
    const double share = gathered("int8") / gathered("none");
    EXPECT_GT(share, 0.5 * 257 / 256);
    EXPECT_LT(share, 0.53) << "norms are not quantized, and each rank has whole blocks";
}

TEST(QuantizedWeights, AreWhatTheUnitSays) {
    compile::Compiled compiled =
        compile_recipe(quantized_recipe({{"parallelism.data_parallel_shard_degree", "4"}}), Backend::Cpu);
    for (ir::Unit& u : compiled.programs[0].units) u.quantized_weights = 0;
    const auto violation = ops::verify(compiled.programs[0]);
    ASSERT_TRUE(violation);
    EXPECT_NE(violation->message.find("crosses ranks as i8"), std::string::npos) << violation->message;
}

// Gradients that are exchanged as int8, or as int4 that is rounded at random: near those that are not.
TEST(QuantizedGradients, TrainNearlyAsTheOthers) {
    for (Settings settings : layouts()) {
        settings.push_back({"partition.quantized_weights", "none"});
        const Outcome exact = run(quantized_recipe(settings), Backend::Cpu, 3);
        for (const char* quantized : {"int8", "int4"}) {
            Settings all = settings;
            all.push_back({"partition.quantized_gradients", quantized});
            const compile::Recipe recipe = quantized_recipe(all);
            const compile::Compiled compiled = compile_recipe(recipe, Backend::Cpu);
            EXPECT_EQ(refusal(compiled), "");
            const Outcome other = run(recipe, compiled, 3);
            EXPECT_EQ(other.losses[0], exact.losses[0]) << "nothing has been reduced yet";
            EXPECT_NE(other.grad_norms[0], exact.grad_norms[0]);
            const double bound = std::string(quantized) == "int8" ? 0.02 : 0.2;
            for (size_t step = 0; step < exact.losses.size(); ++step) {
                EXPECT_NEAR(other.grad_norms[step] / exact.grad_norms[step], 1, bound) << recipe.toml();
                EXPECT_NEAR(other.losses[step] / exact.losses[step], 1, bound / 2) << recipe.toml();
            }
        }
    }
}

// Ranks that update the same shard have the same bits of its gradients, and so of everything after.
TEST(QuantizedGradients, LeaveReplicasAlike) {
    size_t with_replicas = 0;
    for (Settings settings : layouts()) {
        settings.insert(settings.end(), {{"partition.quantized_gradients", "int4"}, {"partition.quantized_weights", "none"}});
        const compile::Recipe recipe = quantized_recipe(settings);
        const compile::Compiled compiled = compile_recipe(recipe, Backend::Cpu);
        const data::SyntheticSource data = synthetic_data(recipe, compiled);
        runtime::Trainer trainer(compile::config_of(recipe), compiled, data);
        start(trainer, recipe);
        for (int step = 0; step < 3; ++step) trainer.step();
        EXPECT_TRUE(runtime::replica_differences(trainer.ranks()).empty()) << recipe.toml();
        with_replicas += compiled.layout.partition.states < compiled.layout.data_ranks ? 1 : 0;
    }
    EXPECT_EQ(with_replicas, 2u);  // mics and hsdp
}

// The bits come from the step and the data: two runs agree, whatever kernels and threads they have; and rounding to nearest is
// something else.
TEST(QuantizedGradients, AreRoundedAtRandomTheSameEachTime) {
    Settings settings = {{"parallelism.data_parallel_shard_degree", "4"}, {"partition.quantized_gradients", "int4"}};
    const Outcome once = run(quantized_recipe(settings), Backend::Cpu, 3),
                  again = run(quantized_recipe(settings), Backend::Cpu, 3);
    EXPECT_EQ(difference(once, again), 0);
    settings.push_back({"partition.gradient_rounding", "nearest"});
    EXPECT_GT(difference(once, run(quantized_recipe(settings), Backend::Cpu, 3)), 0);
}

TEST(QuantizedGradients, AreWhatTheUnitSays) {
    compile::Compiled compiled = compile_recipe(
        quantized_recipe({{"parallelism.data_parallel_shard_degree", "4"}, {"partition.quantized_weights", "none"}}),
        Backend::Cpu);
    for (ir::Unit& u : compiled.programs[0].units) u.quantized_gradients = 8;
    const auto violation = ops::verify(compiled.programs[0]);
    ASSERT_TRUE(violation);
    EXPECT_NE(violation->message.find("gradients cross ranks as f32, not i8"), std::string::npos) << violation->message;
}

// A norm's gradient that a pass would round to int8.
TEST(QuantizedGradients, OfNormsAreAsTheyAre) {
    compile::Compiled compiled = compile_recipe(quantized_recipe({{"parallelism.data_parallel_shard_degree", "4"},
                                                                  {"partition.quantized_weights", "none"},
                                                                  {"partition.quantized_gradients", "int4"}}),
                                                Backend::Cpu);
    ir::Program& p = compiled.programs[0];
    ASSERT_FALSE(ops::verify(p));
    int norms = 0;
    for (ir::Routine& r : p.routines) {
        for (ir::Op& op : r.ops) {
            if (r.kind != ir::RoutineKind::ReduceMicro || op.kind != "quantize" || op.integer("bits") != 32) continue;
            ++norms;
            for (ir::Segment& s : p.units[static_cast<size_t>(p.unit(r.unit) - p.units.data())].segments) s.decay = true;
        }
    }
    EXPECT_GT(norms, 0);
    const auto violation = ops::verify(p);
    ASSERT_TRUE(violation);
    EXPECT_NE(violation->message.find("crosses ranks in 32 bits"), std::string::npos) << violation->message;
}

TEST(QuantizedGradients, CrossRanksInFewerBytes) {
    const auto exchanged = [](const char* quantized, const char* kind) {
        return bytes_of_kind(kind, {{"partition.quantized_weights", "none"}, {"partition.quantized_gradients", quantized}});
    };
    const double whole = exchanged("none", "reduce_scatter"), share = exchanged("int8", "all_to_all") / whole;
    EXPECT_GT(share, 0.24);  // of float32
    EXPECT_LT(share, 0.27);
    EXPECT_NEAR(exchanged("int4", "all_to_all") / exchanged("int8", "all_to_all"), 17.0 / 32 * 256 / 257, 0.004) << "with norms";
    EXPECT_EQ(exchanged("int8", "reduce_scatter"), 0);
}

}  // namespace
}  // namespace lockstep::testing
