// Recipes that set the keys that torchtitan v0.2.2's own recipes set, to the same values: what it can, Lockstep checks; what it
// cannot, it refuses at once, with every technique that is missing.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "tests/cli/command.h"
#include "tests/paths.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;

const fs::path kSource = LOCKSTEP_SOURCE_DIR;
const fs::path kRecipes = kSource / "tests/compile/torchtitan_recipes";

// The ranks on which a recipe is checked, or the techniques that it is refused for.
struct Expected {
    int ranks = 0;
    std::vector<std::string> missing;
    std::string flags = "";
};

const std::map<std::string, Expected>& expected() {
    const std::string experts = "experts", latent = "multi-head latent attention", images = "image generation";
    static const std::map<std::string, Expected> all = {
        {"integration_base_config", {8, {}}},
        {"llama3_debug_model", {8, {}}},
        {"llama3_8b", {64, {}}},
        {"llama3_70b", {64, {}}},
        {"qwen3_0.6b", {8, {}}},
        {"qwen3_1.7b", {8, {}}},
        {"qwen3_32b", {16, {}}},
        {"llama3_405b", {512, {}}},
        {"llama3_ft_debug_model", {8, {}, " --fault_tolerance.group_size 2"}},
        {"llama4_debug_model", {0, {experts}}},
        {"llama4_17bx128e", {0, {experts}}},
        {"llama4_17bx16e", {0, {experts}}},
        {"qwen3_moe_debug", {0, {experts}}},
        {"gpt_oss_debug_model", {0, {experts}}},
        {"deepseek_v3_debug_model", {0, {experts, latent}}},
        {"deepseek_v3_16b", {0, {experts, latent}}},
        {"deepseek_v3_671b", {0, {experts, latent}}},
        {"flux_debug_model", {0, {images}}},
        {"flux_dev_model", {0, {images}}},
        {"flux_schnell_model", {0, {images}}},
        {"transformers_modeling_backend_debug_model", {0, {"model code of transformers"}}},
        {"transformers_modeling_backend_full", {0, {"model code of transformers"}}},
        {"vlm_debug_model", {0, {"images as input"}}},
    };
    return all;
}

// The techniques that a refusal lists, one a line: "  experts (file:3: model.name = ...)".
std::vector<std::string> listed(const std::string& message) {
    std::vector<std::string> out;
    std::istringstream lines(message);
    for (std::string line; std::getline(lines, line);) {
        if (line.starts_with("  ")) out.push_back(line.substr(2, line.find(" (") - 2));
    }
    return out;
}

class Torchtitan : public ::testing::TestWithParam<std::pair<const std::string, Expected>> {};

TEST_P(Torchtitan, IsCheckedOrRefusedOnceForAllReasons) {
    const auto& [name, wanted] = GetParam();
    Scratch s;
    const std::string recipe = (kRecipes / (name + ".toml")).string();
    const Finished f = s.lockstep("check " + recipe + " --json --cluster " + (kSource / "clusters/h100.toml").string() +
                                  (wanted.ranks > 0 ? " --ranks " + std::to_string(wanted.ranks) : "") + wanted.flags);
    if (!wanted.missing.empty()) {
        EXPECT_EQ(f.code, 1);
        const nlohmann::json error = f.json()["error"];
        EXPECT_EQ(error["id"], "recipe.not_available") << f.out;
        EXPECT_EQ(listed(error["message"]), wanted.missing) << f.out;
        return;
    }
    ASSERT_EQ(f.code, 0) << f.out << f.err;
    EXPECT_TRUE(f.json()["fits"]);
    EXPECT_EQ(f.json()["ranks"], wanted.ranks);
    // What is ignored stands in one line, and everything else in none.
    EXPECT_EQ(f.err.find("ignored: "), f.err.rfind("ignored: ")) << f.err;
    EXPECT_NE(f.err.find("ignored: "), std::string::npos) << f.err;
    // Where no layer converts these keys say nothing; of the converter's one has no effect.
    const bool converts = name == "llama3_405b";
    EXPECT_NE(f.err.find(converts ? "quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp" : "quantize.*"),
              std::string::npos)
        << f.err;
}
INSTANTIATE_TEST_SUITE_P(Cli, Torchtitan, ::testing::ValuesIn(expected().begin(), expected().end()), [](const auto& info) {
    std::string name = info.param.first;
    std::replace(name.begin(), name.end(), '.', '_');
    return name;
});

TEST(CliTorchtitan, EveryRecipeIsExpected) {
    std::set<std::string> found;
    for (const auto& file : fs::directory_iterator(kRecipes)) found.insert(file.path().stem());
    EXPECT_EQ(found.size(), 23u);
    for (const auto& [name, wanted] : expected()) EXPECT_TRUE(found.contains(name)) << name;
}

TEST(CliTorchtitan, FlagsTakeBackWhatAFileAsksFor) {
    Scratch s;
    const std::string recipe = (kRecipes / "llama3_405b.toml").string();
    const std::string wide = " --ranks 512 --cluster " + (kSource / "clusters/h100.toml").string();
    const Finished f = s.lockstep("check " + recipe + wide + " --json --model.converters '[]'");
    EXPECT_EQ(f.code, 0) << f.out << f.err;
}

}  // namespace
}  // namespace lockstep::testing
