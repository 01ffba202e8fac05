// lockstep show --schedule and --passes as a user types it.
#include <gtest/gtest.h>

#include "tests/cli/command.h"

namespace lockstep::testing {
namespace {

const char* kTraining = R"([training]
dataset = "synthetic"
global_batch_size = 4
seq_len = 16
)";

TEST(CliShow, DrawsTheScheduleThatTheRecipeRuns) {
    Scratch s;
    s.write("r.toml", tiny_recipe(kTraining) +
                          "[parallelism]\npipeline_parallel_degree = 2\npipeline_parallel_schedule = \"Interleaved1F1B\"\n");
    const nlohmann::json j = s.lockstep("show r.toml --schedule --json").json();
    ASSERT_EQ(j["stages"].size(), 4u);
    EXPECT_EQ(j["stages"][2], nlohmann::json::parse(R"({"stage": 2, "rank": 0, "blocks": ["layer[1]"]})"));
    EXPECT_EQ(j["stages"][3]["rank"], 1);
    EXPECT_EQ(j["rows"], s.lockstep("schedule Interleaved1F1B --ranks 2 --microbatches 4 --json").json()["rows"]);

    const Finished drawn = s.lockstep(
        "show r.toml --schedule --parallelism.pipeline_parallel_schedule 1F1B "
        "--parallelism.pipeline_parallel_last_stage_less_layers 1 --model.n_layers 5");
    EXPECT_EQ(drawn.code, 0) << drawn.err;
    EXPECT_NE(drawn.out.find("stage 0   on pipeline rank 0   embed, layer 0-2\n"
                             "stage 1   on pipeline rank 1   layer 3-4, head\n"
                             "        Rank 0 Rank 1\n"
                             "Step 0: 0F0"),
              std::string::npos)
        << drawn.out;
}

TEST(CliShow, SaysThatThereIsOneStage) {
    Scratch s;
    s.write("r.toml", tiny_recipe(kTraining));
    EXPECT_NE(s.lockstep("show r.toml --schedule").out.find("one stage, no pipeline"), std::string::npos);
    const nlohmann::json j = s.lockstep("show r.toml --schedule --json").json();
    ASSERT_EQ(j["stages"].size(), 1u);
    EXPECT_EQ(j["stages"][0]["blocks"], (std::vector<std::string>{"embed", "layer[0]", "layer[1]", "head"}));
    EXPECT_TRUE(j["rows"].empty());
    EXPECT_EQ(s.lockstep("show r.toml --schedule --after shard").code, 2);
}

TEST(CliShow, SaysWhichPassesChangedTheProgram) {
    Scratch s;
    s.write("r.toml", tiny_recipe(kTraining));
    const auto changed = [&](const std::string& flags) {
        std::map<std::string, bool> out;
        const nlohmann::json j = s.lockstep("show r.toml --passes --json " + flags).json();
        for (const nlohmann::json& pass : j["passes"]) out[pass["name"]] = pass["changed"];
        return out;
    };
    const std::map<std::string, bool> one_stage = changed(""), two_stages = changed("--parallelism.pipeline_parallel_degree 2"),
                                      tied = changed("--model.tie_embeddings 1");
    EXPECT_TRUE(one_stage.at("schedule"));
    EXPECT_FALSE(one_stage.at("split_backward"));
    EXPECT_FALSE(one_stage.at("assign_stages"));
    EXPECT_TRUE(two_stages.at("assign_stages"));
    EXPECT_TRUE(tied.at("assign_stages"));  // marks the embedding as shared
}

TEST(CliShow, SaysWhatEachPassAddsAndTakesAway) {
    Scratch s;
    s.write("r.toml", tiny_recipe(kTraining));
    const nlohmann::json passes =
        s.lockstep("show r.toml --passes --json --parallelism.tensor_parallel_degree 2").json()["passes"];
    std::map<std::string, nlohmann::json> by_name;
    double ops = 0, bytes = 0, flops = 0;
    for (const nlohmann::json& p : passes) {
        by_name[p["name"]] = p;
        ops += p["ops_change"].get<double>(), bytes += p["bytes_change"].get<double>(), flops += p["flops_change"].get<double>();
        EXPECT_DOUBLE_EQ(ops, p["ops"].get<double>()) << p["name"];
        EXPECT_NEAR(bytes, p["bytes"].get<double>(), 1e-9 * bytes) << p["name"];
        EXPECT_NEAR(flops, p["flops"].get<double>(), 1e-9 * flops) << p["name"];
    }
    EXPECT_GT(by_name["differentiate"]["flops_change"], 0);
    EXPECT_LT(by_name["shard"]["flops_change"], 0);
    EXPECT_LT(by_name["shard"]["bytes_change"], 0);
    EXPECT_EQ(by_name["overlap"]["ops_change"], 0);
    EXPECT_GT(by_name["plan_memory"]["arena_bytes"], 0);
    const std::string text = s.lockstep("show r.toml --passes").out;
    EXPECT_NE(text.find("FLOPs"), std::string::npos);
    // The machine, then a line for each.
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1 + static_cast<long>(passes.size()));
}

}  // namespace
}  // namespace lockstep::testing
