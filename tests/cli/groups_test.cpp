// `lockstep check` and the mesh as a table.
#include <gtest/gtest.h>

#include "tests/cli/command.h"

namespace lockstep::testing {
namespace {

const char* kGroups = R"([training]
dataset = "synthetic"
seq_len = 16
steps = 6
[parallelism]
tensor_parallel_degree = 2
data_parallel_shard_degree = 4
)";

TEST(CliGroups, CheckSaysWhoTalksToWhom) {
    Scratch s;
    s.write("r.toml", tiny_recipe(kGroups));
    const Finished f = s.lockstep("check r.toml --cluster.ranks_per_host 4");
    ASSERT_EQ(f.code, 0) << f.err;
    EXPECT_EQ(f.err.find("each tensor-parallel group spans"), std::string::npos) << f.err;
    const nlohmann::json groups = s.lockstep("check r.toml --json --cluster.ranks_per_host 4").json()["groups"];
    bool tp = false, shard = false;
    for (const nlohmann::json& g : groups) {
        EXPECT_NE(f.out.find(g["along"].get<std::string>()), std::string::npos) << f.out;
        if (g["along"] == "tp") {
            tp = true;
            EXPECT_EQ(g["hosts"], 1);
            EXPECT_EQ(g["groups"], 4);
            EXPECT_EQ(g["ranks"], (std::vector<int>{0, 1}));
        }
        if (g["along"] == "dp_shard") {
            shard = true;
            EXPECT_EQ(g["hosts"], 2);
            EXPECT_EQ(g["members"], 4);
            EXPECT_EQ(g["ranks"], (std::vector<int>{0, 2, 4, 6}));
            EXPECT_GT(g["bytes_sent_by_a_rank"]["all_gather"], 0);
        }
    }
    EXPECT_TRUE(tp && shard) << groups.dump(1);
}

TEST(CliGroups, ProgramsSayTheWaysOverDescribedHosts) {
    Scratch s;
    s.write("r.toml", tiny_recipe(kGroups));
    const std::string hosts = " --model.vocab_size 4096 --cluster.ranks_per_host 4";
    const Finished f = s.lockstep("check r.toml" + hosts);
    ASSERT_EQ(f.code, 0) << f.err;
    EXPECT_NE(f.out.find("hosts        2; each sends "), std::string::npos) << f.out;
    const nlohmann::json j = s.lockstep("check r.toml --json" + hosts).json();
    ASSERT_EQ(j["bytes_sent_by_host"].size(), 2u) << j.dump();
    EXPECT_GT(j["bytes_sent_by_host"][0], 0);
    EXPECT_EQ(s.lockstep("check r.toml --json").json()["bytes_sent_by_host"].size(), 0u);
    const std::string two = s.lockstep("show r.toml" + hosts).out,
                      hybrid = s.lockstep("show r.toml --cluster.ranks_per_process 4" + hosts).out;
    EXPECT_NE(two.find("reduce_scatter(local0) {dim=0, level=2, reduce='two_level'} over dp_shard"), std::string::npos) << two;
    EXPECT_NE(hybrid.find("gather='ring'"), std::string::npos);
    EXPECT_EQ(hybrid.find("gather='two_level'"), std::string::npos);
    const Finished bad = s.lockstep("check r.toml --cluster.ranks_per_process 3" + hosts);
    EXPECT_EQ(bad.code, 1);
    EXPECT_NE(bad.err.find("cluster.ranks_per_process = 3: must divide cluster.ranks_per_host = 4"), std::string::npos)
        << bad.err;
    // One process that is told of the hosts adds as they would: other bits than those of one level.
    const auto loss = [&](const std::string& keys) {
        return s.lockstep("train r.toml --json --training.steps 3 --job.dump_folder o" + keys).json()["final_loss"].get<double>();
    };
    EXPECT_NEAR(loss(hosts), loss(" --model.vocab_size 4096"), 1e-4);
}

TEST(CliGroups, TensorParallelAcrossHostsIsLegalAndSaidOnce) {
    Scratch s;
    s.write("r.toml", tiny_recipe(kGroups));
    const Finished f = s.lockstep("check r.toml --cluster.ranks_per_host 1");
    EXPECT_EQ(f.code, 0) << f.err;
    const size_t at = f.err.find("each tensor-parallel group spans 2 hosts, and every layer waits");
    EXPECT_NE(at, std::string::npos) << f.err;
    EXPECT_EQ(f.err.find("each tensor-parallel group spans", at + 1), std::string::npos) << f.err;
    const Finished bad = s.lockstep("check r.toml --cluster.ranks_per_host -1");
    EXPECT_EQ(bad.code, 1);
    EXPECT_NE(bad.err.find("cluster.ranks_per_host = -1: must be from 0 to"), std::string::npos) << bad.err;
}

}  // namespace
}  // namespace lockstep::testing
