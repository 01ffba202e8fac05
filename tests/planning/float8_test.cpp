// Float8 on machines that cluster files describe: rates, kernels, what a plan says of it, and who switches it on.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.h"
#include "planning/float8_share.h"
#include "planning/hints.h"
#include "tests/cli/command.h"
#include "tests/paths.h"
#include "tests/tune/small_problem.h"
#include "tune/devices.h"
#include "tune/search.h"

namespace lockstep::testing {
namespace {

using compile::Recipe;

const std::string kClusters = LOCKSTEP_SOURCE_DIR "/clusters/";

// A layer of Llama 3 8B twice, on 8 ranks that share parameters.
planning::Plan plan_of_8b(const std::string& cluster, const std::vector<std::pair<std::string, std::string>>& keys,
                          const std::string& stack = "torchtitan_compiled") {
    Recipe recipe = Recipe::from_text(R"([model]
name = "llama3"
flavor = "8B"
n_layers = 2
vocab_size = 32000
[training]
dataset = "synthetic"
mixed_precision_param = "bfloat16"
local_batch_size = 2
seq_len = 8192
[parallelism]
data_parallel_shard_degree = 8
[activation_checkpoint]
mode = "none"
)",
                                      "r.toml");
    if (!stack.empty()) recipe.set("cluster.stack", kClusters + "stacks/" + stack + ".toml");
    for (const auto& [key, value] : keys) recipe.set(key, value);
    return planning::make_plan(recipe, kClusters + cluster + ".toml");
}

ops::CostTable with_rates(const std::string& rates) {
    return sim::parse_cluster("[rates]\nbytes_per_s = [1e9]\n[rates.flops_per_s]\n" + rates, "here.toml").costs;
}

TEST(Float8Plan, WithoutItsRateFloat8HasThatOfBfloat16) {
    for (const char* type : {"f8e4m3", "f8e5m2"}) {
        EXPECT_EQ(ops::flops_roof(with_rates("f32 = [1e9]\nbf16 = [4e9]\nf8 = [8e9]\n"), type, 1), 8e9);
        EXPECT_EQ(ops::flops_roof(with_rates("f32 = [1e9]\nbf16 = [4e9]\n"), type, 1), 4e9);
        EXPECT_EQ(ops::flops_roof(with_rates("f32 = [1e9]\n"), type, 1), 1e9);
    }
    EXPECT_EQ(ops::flops_roof(with_rates("f32 = [1e9]\nf8 = [8e9]\n"), "bf16", 1), 1e9);
    try {
        with_rates("f32 = [1e9]\nf8e4m3 = [8e9]\n");
        FAIL() << "accepted";
    } catch (const UserError& e) {
        EXPECT_EQ(e.id(), "cluster.unknown_key");
        EXPECT_NE(std::string(e.what()).find("rates.flops_per_s.f8"), std::string::npos) << e.what();
    }
}

// Every chip with units for float8 has their rate, and every such rate is twice that of bfloat16.
TEST(Float8Plan, ChipsHaveTheRatesOfTheirDataSheets) {
    for (const char* name : {"h100", "h100_500w", "h200", "b200", "mi300x", "mi325x", "l40s", "rtx4090", "rtx5090"}) {
        const ops::CostTable costs = sim::read_cluster(kClusters + name + ".toml", "--cluster").costs;
        EXPECT_NEAR(costs.flops_per_s.at("f8")[0] / costs.flops_per_s.at("bf16")[0], 2, 0.03) << name;
    }
    for (const char* name : {"a100_80gb_8nic", "frontier", "selene", "dgx2_v100_4nic"})
        EXPECT_FALSE(sim::read_cluster(kClusters + name + ".toml", "--cluster").costs.flops_per_s.contains("f8")) << name;
}

// A product counts by the type of its factors, whatever it is added to. Everything else stays what it was.
TEST(Float8Plan, ProductsCountAsFloat8) {
    const planning::Plan plain = plan_of_8b("h100", {}), float8 = plan_of_8b("h100", {{"model.converters", "float8"}});
    std::map<ir::RoutineKind, size_t> products;
    for (const ir::Routine& r : float8.compiled.programs[0].routines) {
        for (const ir::Op& op : r.ops) {
            if (op.kind != ir::kScaledEinsum) continue;
            const ops::CostKey key = ops::cost_key(float8.compiled.programs[0].mesh, r, op, 1);
            EXPECT_EQ(key.dtype, "f8e4m3");
            EXPECT_EQ(key.kernel, "cublaslt.scaled_matmul");
            EXPECT_GT(key.flops, 0);
            ++products[r.kind];
        }
    }
    using enum ir::RoutineKind;  // the stack packs none
    EXPECT_EQ(products, (std::map<ir::RoutineKind, size_t>{{Forward, 7}, {Backward, 14}}));
    EXPECT_EQ(compile::flops_model_of_a_rank(float8.reports), compile::flops_model_of_a_rank(plain.reports));
    EXPECT_EQ(float8.peak_flops_per_s, plain.peak_flops_per_s);  // MFU is of the peak in bfloat16
    EXPECT_EQ(plain.peak_flops_per_s, 989e12);
}

TEST(Float8Plan, SavesTimeWhereTheMachineHasTheRate) {
    for (const char* name : {"h100", "b200"}) {
        const planning::Plan plain = plan_of_8b(name, {}), float8 = plan_of_8b(name, {{"model.converters", "float8"}});
        EXPECT_LT(float8.step_s(), 0.9 * plain.step_s()) << name;
        const auto share = planning::float8_share(float8);
        ASSERT_TRUE(share) << name;
        EXPECT_FALSE(planning::float8_share(plain)) << name;
        // Of a layer's products all, and not the head's: 6 x 2 x 218 M of 6 x (2 x 218 M + 131 M).
        EXPECT_NEAR(share->flops, 436.2 / (436.2 + 131.1), 0.01) << name;
        EXPECT_GT(share->casts_s, 0.01 * float8.step_s()) << name;
        EXPECT_LT(share->casts_s, 0.15 * float8.step_s()) << name;
    }
    EXPECT_LT(plan_of_8b("mi300x", {{"model.converters", "float8"}}, "megatron_core").step_s(),
              plan_of_8b("mi300x", {}, "megatron_core").step_s());
    // An A100 has no units for it: casts cost time, and products save none.
    EXPECT_GT(plan_of_8b("a100_80gb_8nic", {{"model.converters", "float8"}}).step_s(), plan_of_8b("a100_80gb_8nic", {}).step_s());
}

// PyTorch keeps rows as they were before the cast.
TEST(Float8Plan, AStackKeepsTheRowsThatItCasts) {
    const auto activations = [](const char* converter, const char* tensor) {
        return plan_of_8b("h100", {{"model.converters", converter},
                                   {"parallelism.data_parallel_shard_degree", "2"},
                                   {"parallelism.tensor_parallel_degree", tensor}})
            .needed.of_stack[0]
            .activations;
    };
    for (const char* tensor : {"1", "4"})
        EXPECT_NEAR(activations("float8", tensor), activations("", tensor), 1e-3 * activations("", tensor)) << tensor;
}

struct Hinted {
    Scratch s;
    planning::Hints hints;
    double step_s = 0;

    explicit Hinted(const std::string& keys, const std::string& rates) {
        std::string cluster = kSmallDevices;
        cluster.replace(cluster.find("bf16 = [2e11]"), 13, "bf16 = [2e11]\n" + rates);
        const std::string file = s.write("c.toml", cluster);
        const Recipe opened = planning::opened_for_plan(
            Recipe::from_text(
                "[model]\nname = \"llama3\"\ndim = 512\nn_layers = 2\nn_heads = 8\nn_kv_heads = 4\nvocab_size = 512\n"
                "ffn_dim = 1024\n" +
                    keys +
                    "[training]\ndataset = \"synthetic\"\nseq_len = 256\nlocal_batch_size = 4\n"
                    "mixed_precision_param = \"bfloat16\"\n[parallelism]\ndata_parallel_shard_degree = 4\n"
                    "[runtime]\nkernels = \"reference\"\n",
                "r.toml"),
            file);
        const planning::Plan plan = planning::plan_of_opened(opened, file);
        step_s = plan.step_s();
        hints = planning::hints_of(opened, file, plan);
    }
};

TEST(Float8Plan, HintsPriceItWhereTheRecipeDoesNotAskForIt) {
    const Hinted with("", "f8 = [4e11]\n");
    ASSERT_TRUE(with.hints.float8);
    ASSERT_TRUE(with.hints.float8->step) << with.hints.float8->why;
    const planning::OtherStep& o = *with.hints.float8->step;
    EXPECT_EQ(o.step.ranks, 4);
    EXPECT_NEAR(o.time, o.step.step_s / with.step_s - 1, 1e-9);
    EXPECT_LT(o.time, 0);
    EXPECT_FALSE(Hinted("", "").hints.float8);                                          // no rate of it
    EXPECT_FALSE(Hinted("converters = [\"float8\"]\n", "f8 = [4e11]\n").hints.float8);  // asked for
}

std::vector<tune::Choice> choices_of_space(const tune::Problem& p) {
    std::vector<tune::Choice> out;
    for (const tune::Choice& family : p.space.families) {
        for (const tune::Choice& member : p.space.members(family)) out.push_back(member);
    }
    return out;
}

tune::Problem problem_with_float8_rates(const std::string& converters) {
    std::string cluster = kSmallDevices;
    cluster.replace(cluster.find("bf16 = [2e11]"), 13, "bf16 = [2e11]\nf8 = [4e11]");
    return tune::problem_of(small_config({{"model.converters", converters},
                                          {"training.mixed_precision_param", "bfloat16"},
                                          {"parallelism.pipeline_parallel_degree", "1"}}),
                            sim::parse_cluster(cluster, "small.toml"), "small.toml", 4, 8);
}

// A search changes layouts, and not what is computed.
TEST(Float8Plan, TuneNeverSwitchesItOnOrOff) {
    for (const char* converters : {"", "float8"}) {
        const tune::Problem p = problem_with_float8_rates(converters);
        for (const tune::Choice& c : choices_of_space(p)) {
            const compile::Config changed = tune::with(p.space.base, c, p.space.global_batch);
            EXPECT_EQ(changed.float8().has_value(), *converters != 0) << text_of(c);
            for (const auto& [key, value] : tune::settings_of(changed)) {
                EXPECT_NE(key, "model.converters") << text_of(c);
                EXPECT_FALSE(key.starts_with("quantize.")) << key;
            }
        }
    }
}

TEST(Float8Plan, BoundsOfTuneNeverExceedItsPlans) {
    const tune::Problem p = problem_with_float8_rates("float8");
    tune::Bounds bounds(p);
    size_t planned = 0;
    for (const tune::Choice& c : choices_of_space(p)) {
        const auto result = tune::plan_of(p, c);
        if (compile::refusal_of(result)) continue;
        const auto& plan = std::get<tune::Planned>(result);
        ++planned;
        EXPECT_LE(bounds.bytes(c), plan.bytes) << text_of(c);
        if (!plan.fits) continue;
        EXPECT_LE(bounds.of_family(c).step_s, plan.step_s) << text_of(c);
        EXPECT_LE(bounds.of_member(c).step_s, plan.step_s) << text_of(c);
    }
    EXPECT_GT(planned, 20u);
}

}  // namespace
}  // namespace lockstep::testing
