// tune, and plan --against, as a user types them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/cli/command.h"

namespace lockstep::testing {
namespace {

const char* kTwoSteps = R"([training]
dataset = "synthetic"
local_batch_size = 1
global_batch_size = 4
seq_len = 16
steps = 2
)";

// Devices of round numbers, four a host.
std::string cluster(const std::string& memory_bytes) {
    return R"(name = "toy"
description = "round numbers"
declared = true
[machine]
devices = true
memory_bytes = )" +
           memory_bytes +
           R"(
[rates]
bytes_per_s = [1e10]
op_overhead_s = 1e-6
[rates.flops_per_s]
f32 = [1e11]
[[links]]
ranks = 4
bandwidth_bytes_per_s = 5e9
latency_s = 1e-6
[[links]]
ranks = 0
bandwidth_bytes_per_s = 1e9
ports = 2
latency_s = 1e-6
[[constants]]
key = "links.4.bandwidth_bytes_per_s"
prior = 5e9
spread = 0.2
)";
}

class CliTune : public ::testing::Test {
protected:
    CliTune() {
        s_.write("r.toml", tiny_recipe(kTwoSteps));
        s_.write("c.toml", cluster("1e9"));
    }
    Finished tune(const std::string& more) {
        return s_.lockstep("tune r.toml --cluster c.toml --runtime.kernels reference " + more);
    }

    Scratch s_;
};

TEST_F(CliTune, PrintsTheContractedObject) {
    const Finished f = tune("--ranks 4 --json");
    ASSERT_EQ(f.code, 0) << f.err;
    const nlohmann::json j = f.json();
    EXPECT_EQ(j["ranks"], 4);
    EXPECT_EQ(j["global_batch_size"], 4);
    EXPECT_EQ(j["software"], "Lockstep");
    EXPECT_TRUE(j["winner_in"].empty());
    EXPECT_EQ(j["memory_margin_bytes"], 2e7);
    ASSERT_EQ(j["best"].size(), 10u);
    double before_s = 0;
    for (const nlohmann::json& row : j["best"]) {
        const double step_s = row["step_time_s"];
        EXPECT_GE(step_s, before_s);
        before_s = step_s;
        EXPECT_NEAR(row["tokens_per_s"].get<double>(), 64 / step_s, 1e-6 / step_s);
        EXPECT_LE(row["band_s"][0], step_s);
        EXPECT_GE(row["band_s"][1], step_s);
        EXPECT_LE(row["bytes"], 0.98e9);
        double sum = 0;
        for (const auto& [cause, time_s] : row["causes_s"].items()) sum += time_s.get<double>();
        EXPECT_NEAR(sum, step_s, 1e-9);
        EXPECT_EQ(row["why"] == "", row == j["best"][0]);
    }
    int64_t not_planned = 0;
    for (const nlohmann::json& cut : j["not_planned"]) not_planned += cut["layouts"].get<int64_t>();
    EXPECT_LE(not_planned, j["layouts"].get<int64_t>());
    EXPECT_TRUE(j["own"].contains("place"));
    EXPECT_FALSE(j["pareto"].empty());
}

// A row is what `plan` says of its keys.
TEST_F(CliTune, ItsWinnerIsARecipeThatCheckPlanAndTrainTake) {
    const Finished f = tune("--ranks 4 --json --out best.toml");
    ASSERT_EQ(f.code, 0) << f.err;
    const nlohmann::json best = f.json()["best"][0];
    const Finished plan = s_.lockstep("plan best.toml --json");
    ASSERT_EQ(plan.code, 0) << plan.err;
    EXPECT_DOUBLE_EQ(plan.json()["step_time_s"], best["step_time_s"]);
    EXPECT_DOUBLE_EQ(plan.json()["mfu"], best["mfu"]);
    EXPECT_EQ(s_.lockstep("check best.toml").code, 0);
    const Finished trained = s_.lockstep("train best.toml --json");
    ASSERT_EQ(trained.code, 0) << trained.err;
    EXPECT_EQ(trained.json()["steps"], 2);
    const Finished again = tune("--ranks 4 --out best.toml");
    EXPECT_EQ(again.code, 1);
    EXPECT_TRUE(has(again.err, "tune.out_exists")) << again.err;
}

// With a stack the search is for that software, and the winner is planned as Lockstep's program, too: both as `plan` says.
TEST_F(CliTune, SaysForWhichSoftwareItsWinnerIs) {
    const std::string on = "llama3_8b_torchtitan --cluster h100 ", stack = "--cluster.stack torchtitan_compiled ";
    const Finished f = s_.lockstep("tune " + on + stack +
                                   "--ranks 8 --json --top 1 --out best.toml --parallelism.tensor_parallel_degree 1 "
                                   "--parallelism.pipeline_parallel_degree 1");
    ASSERT_EQ(f.code, 0) << f.err;
    const nlohmann::json j = f.json(), in = j["winner_in"];
    EXPECT_EQ(j["software"], "torchtitan_compiled");
    ASSERT_EQ(in.size(), 2u);
    EXPECT_EQ(in[0]["software"], "torchtitan_compiled");
    EXPECT_EQ(in[0]["step_time_s"], j["best"][0]["step_time_s"]);
    EXPECT_EQ(in[1]["software"], "Lockstep");
    const nlohmann::json own = s_.lockstep("plan best.toml --cluster.stack '' --json").json();
    EXPECT_DOUBLE_EQ(in[1]["step_time_s"], own["step_time_s"]);
    EXPECT_EQ(in[1]["bytes"], own["needed_bytes"]);
    EXPECT_NE(in[0]["step_time_s"], in[1]["step_time_s"]);
}

TEST_F(CliTune, PricesNumbersOfDevices) {
    const Finished f = tune("--ranks 2 --json --devices 1,2,4,3 --tokens 1e9 --price-per-device-hour 2 --top 1");
    ASSERT_EQ(f.code, 0) << f.err;
    const nlohmann::json rows = f.json()["devices"];
    ASSERT_EQ(rows.size(), 4u);
    for (size_t i = 0; i < 3; ++i) {
        const double tokens_per_s = rows[i]["tokens_per_s"], hours = 1e9 / tokens_per_s / 3600;
        EXPECT_NEAR(rows[i]["days"].get<double>(), hours / 24, 1e-9 * hours);
        EXPECT_NEAR(rows[i]["price"].get<double>(), 2 * hours * rows[i]["devices"].get<double>(), 1e-9 * hours);
    }
    EXPECT_EQ(f.json()["best"][0]["step_time_s"], rows[1]["step_time_s"]);
    const Finished text = tune("--ranks 2 --devices 1,2,4 --tokens 1e9 --price-per-device-hour 2 --top 1");
    EXPECT_TRUE(has(text.out, "cheapest: 1 devices")) << text.out;
    EXPECT_TRUE(has(text.out, "fastest: ")) << text.out;
}

TEST_F(CliTune, SaysWhatWouldFit) {
    s_.write("c.toml", cluster("2e4"));
    const Finished f = tune("--ranks 2");
    EXPECT_EQ(f.code, 1);
    EXPECT_TRUE(has(f.err, "tune.nothing_fits")) << f.err;
    EXPECT_TRUE(has(f.err, "The closest, tp ")) << f.err;
    EXPECT_TRUE(has(f.err, "More ranks or devices with more memory would make it fit")) << f.err;
}

TEST_F(CliTune, SaysWhatMoreMemoryAndPortsWouldBuy) {
    const Finished f = tune("--ranks 8 --what-if --json --global_batch 4 --top 1");
    EXPECT_EQ(f.code, 2);
    const Finished g = tune("--ranks 8 --what-if --json --training.global_batch_size 8 --top 1");
    ASSERT_EQ(g.code, 0) << g.err;
    ASSERT_EQ(g.json()["what_if"].size(), 2u);
    const nlohmann::json what_if = g.json()["what_if"];
    for (const nlohmann::json& w : what_if) EXPECT_LE(w["step_time_s"], g.json()["best"][0]["step_time_s"]);
}

TEST_F(CliTune, HoldsKeysGivenAsFlags) {
    const Finished f = tune("--ranks 4 --json --parallelism.tensor_parallel_degree 2 --activation_checkpoint.mode full");
    ASSERT_EQ(f.code, 0) << f.err;
    const nlohmann::json best = f.json()["best"];
    for (const nlohmann::json& row : best) {
        EXPECT_EQ(row["keys"]["parallelism.tensor_parallel_degree"], "2");
        EXPECT_EQ(row["keys"]["activation_checkpoint.mode"], "full");
    }
}

TEST_F(CliTune, PlanAgainstAnotherRecipeAddsUp) {
    s_.write("other.toml", tiny_recipe(std::string(kTwoSteps) + "[activation_checkpoint]\nmode = \"full\"\n"));
    const std::string plan = "plan r.toml --against other.toml --cluster c.toml --runtime.kernels reference ";
    const Finished f = s_.lockstep(plan + "--json");
    ASSERT_EQ(f.code, 0) << f.err;
    const nlohmann::json j = f.json();
    double own_s = 0, other_s = 0;
    for (const auto& [cause, both] : j["against"]["causes"].items())
        own_s += both["time_s"].get<double>(), other_s += both["against_s"].get<double>();
    EXPECT_NEAR(own_s, j["step_time_s"].get<double>(), 1e-9);
    EXPECT_NEAR(other_s, j["against"]["step_time_s"].get<double>(), 1e-9);
    EXPECT_EQ(j["against"]["causes"]["recompute"]["time_s"], 0);
    EXPECT_GT(j["against"]["causes"]["recompute"]["against_s"], 0);
    EXPECT_TRUE(has(s_.lockstep(plan).out, "against other.toml: ")) << f.out;
}

}  // namespace
}  // namespace lockstep::testing
