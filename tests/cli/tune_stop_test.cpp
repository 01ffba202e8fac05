// `tune` as a user stops it, and what it says of days, failures and money.
#include <gtest/gtest.h>

#include "tests/cli/command.h"

namespace lockstep::testing {
namespace {

const char* kClusterToStop = R"(name = "toy"
description = "round numbers"
declared = true
[machine]
devices = true
memory_bytes = 1e9
mtbf_hours = 1000
[rates]
bytes_per_s = [1e10]
op_overhead_s = 1e-6
[rates.flops_per_s]
f32 = [1e11]
[[links]]
ranks = 4
bandwidth_bytes_per_s = 5e9
[[links]]
ranks = 0
bandwidth_bytes_per_s = 1e9
)";

class CliTuneStop : public ::testing::Test {
protected:
    CliTuneStop() {
        s_.write("r.toml", training_recipe(2));
        s_.write("c.toml", kClusterToStop);
    }
    Scratch s_;
};

// On a terminal, where the bar says that a layout that fits was found.
TEST_F(CliTuneStop, CtrlCPrintsWhatItHasAndEndsWithFour) {
    const Finished f = s_.shell(
        "{ export LOCKSTEP; script -qfec 'exec $LOCKSTEP tune r.toml --cluster c.toml --runtime.kernels reference --ranks 64 "
        "--model.n_layers 32 --training.global_batch_size 256 --exhaustive --out best.toml >table.txt' shown.txt </dev/null "
        ">/dev/null 2>&1 & until grep -q 'planned, best' shown.txt 2>/dev/null; do sleep 0.05; done; kill -INT $(pgrep -P $!); "
        "wait $!; "
        "code=$?; cp table.txt out.txt; cp shown.txt err.txt; (exit $code); }");
    EXPECT_EQ(f.code, 4) << f.err;
    EXPECT_TRUE(has(f.err, "% searched, ")) << f.err;
    EXPECT_TRUE(has(f.err, "SIGINT ended the search: ")) << f.err;
    EXPECT_TRUE(has(f.out, "; stopped, ")) << f.out;
    EXPECT_TRUE(has(f.out, "\n   1 ")) << f.out;
    EXPECT_EQ(s_.lockstep("check best.toml").code, 0) << "the best so far is written";
}

TEST_F(CliTuneStop, GoodputAddsUpAndCostsDays) {
    const std::string tune = "tune r.toml --cluster c.toml --runtime.kernels reference --ranks 4 --top 1 --json --tokens 1e12 ";
    const Finished f = s_.lockstep(tune + "--goodput --price 2 --currency EUR --save-seconds 20");
    ASSERT_EQ(f.code, 0) << f.err;
    const nlohmann::json g = f.json()["goodput"], t = f.json()["training"];
    EXPECT_NEAR(g["useful"].get<double>() + g["saving"].get<double>() + g["lost"].get<double>(), 1, 1e-9);
    EXPECT_EQ(g["mtbf_hours"], 1000);
    EXPECT_EQ(g["job_mtbf_hours"], 250);
    EXPECT_EQ(g["save_s"], 20);
    EXPECT_EQ(f.json()["currency"], "EUR");
    const double hours = 1e12 / t["tokens_per_s"].get<double>() / 3600 / g["useful"].get<double>();
    EXPECT_NEAR(t["days"].get<double>(), hours / 24, 1e-6 * hours);
    EXPECT_NEAR(t["device_hours"].get<double>(), 4 * hours, 1e-6 * hours);
    EXPECT_NEAR(t["price"].get<double>(), 8 * hours, 1e-6 * hours);
    const Finished often = s_.lockstep(tune + "--goodput --mtbf 10");
    EXPECT_LT(often.json()["goodput"]["useful"], g["useful"]);
}

TEST_F(CliTuneStop, TokensAreThoseOfTheRecipeWhereNoneAreGiven) {
    const Finished f = s_.lockstep("tune r.toml --cluster c.toml --runtime.kernels reference --ranks 4 --top 1 --json --goodput");
    ASSERT_EQ(f.code, 0) << f.err;
    EXPECT_EQ(f.json()["training"]["tokens"], 2 * 4 * 16);
}

}  // namespace
}  // namespace lockstep::testing
