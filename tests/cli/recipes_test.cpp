// The recipes that come with Lockstep and say how much memory their ranks fit into it.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "tests/cli/command.h"
#include "tests/paths.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;

const fs::path kSourceFolder = LOCKSTEP_SOURCE_DIR;

std::string text_of(const fs::path& path) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
}

// The number that a recipe gives a key, or `otherwise`.
double number(const std::string& text, const std::string& key, double otherwise) {
    const size_t at = text.find("\n" + key + " = ");
    return at == std::string::npos ? otherwise : std::stod(text.substr(at + key.size() + 4));
}

std::string path_of(const std::string& recipe) { return (kSourceFolder / "recipes" / (recipe + ".toml")).string(); }

std::string cluster_of(const std::string& file) { return (kSourceFolder / "clusters" / file).string(); }

nlohmann::json plan(const Scratch& s, const std::string& recipe, const std::string& cluster, const std::string& flags = "") {
    const Finished f =
        s.lockstep("plan " + path_of(recipe) + " --json --cluster " + (kSourceFolder / "clusters" / cluster).string() + flags);
    EXPECT_EQ(f.code, 0) << recipe << ": " << f.out << f.err;
    return f.json();
}

void expect_sound(const nlohmann::json& plan, int64_t ranks) {
    EXPECT_TRUE(plan["fits"]);
    EXPECT_TRUE(plan["declared"]);
    EXPECT_EQ(plan["ranks"], ranks);
    EXPECT_GT(plan["mfu"], 0.1);
    EXPECT_LT(plan["mfu"], 1);
}

// The memory is that of the cluster file's device, which no recipe overrides.
TEST(CliRecipes, FitTheDevicesThatTheyName) {
    Scratch s;
    std::set<std::string> fit;
    for (const auto& file : fs::directory_iterator(kSourceFolder / "recipes")) {
        const std::string text = text_of(file.path());
        EXPECT_EQ(text.find("memory_gib_per_rank"), std::string::npos) << file.path();
        if (text.find("clusters/") == std::string::npos) continue;
        SCOPED_TRACE(file.path());
        const Finished f = s.lockstep("check " + file.path().string() + " --json");
        ASSERT_EQ(f.code, 0) << f.err;
        const nlohmann::json j = f.json();
        EXPECT_TRUE(j["fits"]);
        EXPECT_EQ(static_cast<double>(j["stages"].size()), number(text, "pipeline_parallel_degree", 1));
        const double device = text.find("frontier.toml") != std::string::npos ? 64
                              : text.find("h100_500w") != std::string::npos   ? 96
                                                                              : 80;
        for (const auto& stage : j["stages"])
            EXPECT_LE(stage["bytes"]["total"].get<double>() + stage["reserve"].get<double>(), device * (1 << 30));
        fit.insert(file.path().stem());
    }
    for (const char* name :
         {"llama3_8b", "llama3_8b_torchtitan", "llama3_8b_torchtitan_pp", "llama3_70b", "llama3_70b_torchtitan", "llama3_405b",
          "llama3_405b_pp", "gpt_20b_frontier", "gpt_22b_frontier", "gpt_175b_frontier", "gpt_1t_frontier"})
        EXPECT_TRUE(fit.contains(name)) << name;
}

// The device of the file that --cluster names is the bound, whatever the recipe's own file has, and a key above it is refused.
TEST(CliRecipes, AreHeldAgainstTheDeviceThatIsNamed) {
    Scratch s;
    const std::string recipe = path_of("llama3_8b_torchtitan"), small = " --cluster " + cluster_of("a100_40gb_8nic.toml");
    for (const char* command : {"check ", "plan "}) {
        const Finished f = s.lockstep(command + recipe + small);
        EXPECT_EQ(f.code, 1) << f.out;
        EXPECT_TRUE(has(f.err, "40.000 GiB of a device")) << f.err;
    }
    for (const char* command : {"check ", "plan ", "tune "}) {
        const Finished f = s.lockstep(command + recipe + small + " --cluster.memory_gib_per_rank 80");
        EXPECT_EQ(f.code, 1) << f.out;
        EXPECT_TRUE(has(f.err, "cluster.memory_gib_per_rank = 80: more than a rank has")) << f.err;
        EXPECT_TRUE(has(f.err, "[check.memory_above_device]")) << f.err;
        EXPECT_TRUE(has(f.err, "40.000 GiB of a device")) << f.err;
    }
    const Finished within = s.lockstep("check " + recipe + " --cluster.memory_gib_per_rank 70 --json");
    EXPECT_EQ(within.code, 0) << within.err;
}

// A search over B200s uses what a B200 has: 180 GiB.
TEST(CliRecipes, AreSearchedForInAllOfTheDevicesMemory) {
    Scratch s;
    const std::string held =
        " --parallelism.pipeline_parallel_degree 1 --parallelism.tensor_parallel_degree 4 --activation_checkpoint.mode none "
        "--training.local_batch_size 2 --partition.preset zero2 --memory-margin 0";  // so that the search takes seconds
    const Finished f =
        s.lockstep("tune " + path_of("llama3_70b") + " --ranks 64 --cluster " + cluster_of("b200.toml") + " --json" + held);
    ASSERT_EQ(f.code, 0) << f.err;
    double most = 0;
    const nlohmann::json found = f.json();
    for (const auto& layout : found["best"]) most = std::max(most, layout["bytes"].get<double>());
    EXPECT_GT(most, 150.0 * (1 << 30)) << f.out.substr(0, 2000);
}

TEST(CliRecipes, ATrillionParametersArePlannedWithTheBytesOfTheCheck) {
    Scratch s;
    const nlohmann::json j = plan(s, "gpt_1t_frontier", "frontier.toml");
    expect_sound(j, 512);
    // 1F1B waits for p - 1 of m + p - 1 microbatches where nothing else is waited for.
    EXPECT_GT(j["bubble_fraction"], 0.8 * 63 / 1663);
    const nlohmann::json check = s.lockstep("check " + path_of("gpt_1t_frontier") + " --json").json();
    ASSERT_EQ(j["stages"].size(), 64u);
    ASSERT_EQ(check["stages"].size(), 64u);
    for (size_t k = 0; k < 64; ++k) EXPECT_EQ(j["stages"][k]["bytes"], check["stages"][k]["bytes"]) << k;
}

TEST(CliRecipes, PublishedLayoutsOfTorchtitanArePlanned) {
    Scratch s;
    const auto on = [&](const char* recipe, const std::string& flags = "") { return plan(s, recipe, "h100.toml", flags); };
    const nlohmann::json few = on("llama3_8b_torchtitan");
    const nlohmann::json many = on("llama3_8b_torchtitan", " --parallelism.data_parallel_shard_degree 128");
    expect_sound(few, 8), expect_sound(many, 128);
    // Master weights and moments: 12 bytes a parameter, of which a rank has an eighth or a 128th.
    const auto states = [](const nlohmann::json& j) {
        const nlohmann::json& bytes = j["stages"][0]["bytes"];
        return bytes["weights"].get<double>() + bytes["optimizer"].get<double>();
    };
    EXPECT_NEAR(states(few), 12 * 8.03e9 / 8, 0.01 * states(few));
    EXPECT_NEAR(states(many), 12 * 8.03e9 / 128, 0.01 * states(many));
    expect_sound(on("llama3_8b_torchtitan_pp"), 32);
    expect_sound(on("llama3_70b_torchtitan"), 256);
}

}  // namespace
}  // namespace lockstep::testing
