// Every recipe that comes with Lockstep and says how much memory its ranks have fits into it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/cli/command.h"

namespace lockstep::testing {
namespace {

std::string text_of(const std::filesystem::path& path) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
}

TEST(CliRecipes, FitTheMemoryThatTheyDeclare) {
    Scratch s;
    int declared = 0;
    for (const auto& file : std::filesystem::directory_iterator(std::string(LOCKSTEP_SOURCE_DIR) + "/recipes")) {
        const std::string text = text_of(file.path()), path = file.path().string();
        if (text.find("memory_gib_per_rank") == std::string::npos) continue;
        SCOPED_TRACE(path);
        // More than two microbatches a pipeline rank take time to check and no memory: 1F1B holds one a rank at most.
        const size_t at = text.find("pipeline_parallel_degree = ");
        const int degree = at == std::string::npos ? 1 : std::stoi(text.substr(at + 27));
        const bool large = text.find("global_batch_size = ") != std::string::npos && degree > 1;
        const std::string fewer = large ? fmt::format(" --training.global_batch_size {}", 2 * degree) : "";
        const Finished f = s.lockstep("check " + path + " --json" + fewer);
        ASSERT_EQ(f.code, 0) << f.err;
        const nlohmann::json j = f.json();
        EXPECT_TRUE(j["fits"]);
        EXPECT_EQ(j["stages"].size(), static_cast<size_t>(degree));
        const double capacity = std::stod(text.substr(text.find("memory_gib_per_rank = ") + 22)) * (1 << 30);
        for (const auto& stage : j["stages"])
            EXPECT_LE(stage["bytes"]["total"].get<double>() + stage["reserve"].get<double>(), capacity);
        ++declared;
    }
    EXPECT_GE(declared, 7);
}

}  // namespace
}  // namespace lockstep::testing
