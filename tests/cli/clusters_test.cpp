// Machines, software and recipes by name, from wherever the program lies; completion of names and of values.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/cli/command.h"
#include "tests/paths.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;

TEST(CliClusters, ListsEveryFileThatComesWithTheProgram) {
    const Scratch s;
    const nlohmann::json j = s.lockstep("clusters --json").json();
    size_t files = 0;
    for (const auto& e : fs::directory_iterator(std::string(LOCKSTEP_SOURCE_DIR) + "/clusters"))
        files += e.path().extension() == ".toml";
    EXPECT_EQ(j["clusters"].size(), files);
    const Finished text = s.lockstep("clusters");
    for (const nlohmann::json& c : j["clusters"]) {
        EXPECT_TRUE(fs::exists(c["file"].get<std::string>()));
        EXPECT_GT(c["memory_bytes"], 1e10) << c;
        EXPECT_GE(c["devices_per_host"], 1) << c;
        EXPECT_FALSE(c["device"].get<std::string>().empty()) << c;
        EXPECT_TRUE(has(text.out, "\n" + c["name"].get<std::string>() + " ")) << text.out;
    }
    for (const nlohmann::json& stack : j["stacks"]) EXPECT_FALSE(stack["description"].get<std::string>().empty()) << stack;
}

TEST(CliClusters, ListsTheKeysOfItsFiles) {
    const Scratch s;
    const std::string text = s.lockstep("clusters --keys").out;
    EXPECT_TRUE(has(text, "[[links]]\n    ranks (an integer at least 0): ")) << text;
    for (const nlohmann::json& k : s.lockstep("clusters --keys --json").json())
        EXPECT_TRUE(has(text, fmt::format("    {} (", k["key"].get<std::string>()))) << k;
}

TEST(CliClusters, ANameIsTheFileOfThatName) {
    const Scratch s;
    const std::string file = std::string(LOCKSTEP_SOURCE_DIR) + "/clusters/h100.toml";
    const nlohmann::json
        by_name = s.lockstep("plan llama3_8b --cluster h100 --json").json(),
        by_path = s.lockstep(fmt::format("plan {}/recipes/llama3_8b.toml --cluster {} --json", LOCKSTEP_SOURCE_DIR, file)).json();
    EXPECT_EQ(by_name["step_time_s"], by_path["step_time_s"]);
    EXPECT_EQ(by_name["stages"], by_path["stages"]);
    EXPECT_EQ(s.lockstep("tune llama3_8b --cluster h100 --ranks 8 --top 1 --out best.toml").code, 0);
    EXPECT_TRUE(has(s.read("best.toml"), "file = \"h100\"\n")) << s.read("best.toml");
    EXPECT_EQ(s.lockstep("plan best.toml").code, 0);
}

// The chip's compute capability decides which kernels there are.
TEST(CliClusters, CardsHaveThePlansOfTheirKind) {
    const Scratch s;
    for (const auto& [cluster, has_gelu] : {std::pair{"h100", true}, {"l40s", false}, {"rtx4090", false}, {"rtx5090", false}}) {
        const std::string flags = fmt::format(" gpt2_124m --cluster.file {} --training.mixed_precision_param bfloat16", cluster);
        const Finished shown = s.lockstep("show" + flags), planned = s.lockstep("plan" + flags);
        ASSERT_EQ(shown.code, 0) << shown.err;
        EXPECT_TRUE(has(shown.out, "= linear(")) << cluster;
        EXPECT_EQ(has(shown.out, "= linear_gelu("), has_gelu) << cluster;
        ASSERT_EQ(planned.code, 0) << planned.err;
        EXPECT_TRUE(has(planned.out, "Estimate: this cluster file contains published rates, not measurements")) << planned.out;
    }
}

// A program that was installed, and moved.
TEST(CliClusters, AnInstalledProgramFindsItsOwnFiles) {
    const Scratch s;
    const Finished f = s.shell(fmt::format(
        "mkdir -p prefix/bin prefix/share/lockstep && cp $LOCKSTEP prefix/bin/lockstep && cp -r {0}/recipes {0}/clusters "
        "prefix/share/lockstep && mv prefix moved && moved/bin/lockstep clusters --json >out.txt 2>err.txt",
        LOCKSTEP_SOURCE_DIR));
    ASSERT_EQ(f.code, 0) << f.err;
    EXPECT_EQ(f.json()["clusters"][0]["file"].get<std::string>().rfind(s.path("moved/share/lockstep/clusters/"), 0), 0u) << f.out;
    const Finished none =
        s.shell("mkdir -p alone/bin && cp $LOCKSTEP alone/bin && alone/bin/lockstep clusters >out.txt 2>err.txt");
    EXPECT_EQ(none.code, 1);
    EXPECT_TRUE(has(none.err, "clusters.none")) << none.err;
}

// On a terminal the verdict has a color and lines end between words; into a file neither.
class CliVerdict : public ::testing::Test {
protected:
    // What a terminal of this number of columns shows.
    std::string on_terminal(int columns, const std::string& arguments, const std::string& environment = "") const {
        s.shell(fmt::format(
            "{} TERM=xterm LOCKSTEP=$LOCKSTEP script -qec 'stty cols {}; $LOCKSTEP {} 2>log.txt' shown.txt >out.txt 2>err.txt "
            "</dev/null",
            environment, columns, arguments));
        std::string text;
        for (const char c : s.read("shown.txt")) text += c == '\r' ? "" : std::string(1, c);
        return text;
    }
    Scratch s;
};

TEST_F(CliVerdict, IsTheFirstLineOfPlanAndCheck) {
    const Finished plan = s.lockstep("plan llama3_8b --cluster h100"), check = s.lockstep("check llama3_8b --cluster h100");
    EXPECT_EQ(plan.out.rfind("fits: ", 0), 0u) << plan.out;
    EXPECT_TRUE(has(lines_of(plan.out)[0], " a rank; step ")) << plan.out;
    EXPECT_TRUE(has(lines_of(plan.out)[0], " tokens/s, MFU ")) << plan.out;
    EXPECT_EQ(check.out.rfind("fits: ", 0), 0u) << check.out;
    EXPECT_FALSE(has(plan.out + check.out, "\033[")) << "no colors in a file";
    const std::string large = " llama3_8b --cluster h100 --training.local_batch_size 64 --activation_checkpoint.mode none";
    const Finished not_plan = s.lockstep("plan" + large), not_check = s.lockstep("check" + large);
    EXPECT_EQ(not_plan.code, 1);
    EXPECT_EQ(not_plan.out.rfind("does not fit: ", 0), 0u) << not_plan.out;
    EXPECT_EQ(not_check.code, 1);
    EXPECT_EQ(not_check.out.rfind("does not fit: ", 0), 0u) << not_check.out;
    EXPECT_EQ(s.lockstep("plan llama3_8b --cluster h100 --json").out[0], '{');
}

TEST_F(CliVerdict, IsGreenOrRedOnATerminalAlone) {
    EXPECT_TRUE(has(on_terminal(120, "check llama3_8b --cluster h100"), "\033[32mfits: "));
    EXPECT_TRUE(has(on_terminal(120, "plan llama3_8b --cluster h100 --quiet"), "\033[32mfits: "));
    EXPECT_TRUE(has(on_terminal(120,
                                "check llama3_8b --cluster h100 --training.local_batch_size 64 "
                                "--activation_checkpoint.mode none"),
                    "\033[31mdoes not fit: "));
    EXPECT_FALSE(has(on_terminal(120, "check llama3_8b --cluster h100", "NO_COLOR=1"), "\033[32m"));
    EXPECT_FALSE(has(on_terminal(120, "check llama3_8b --cluster h100 --json"), "\033[32m"));
}

TEST_F(CliVerdict, TablesEndTheirLinesBetweenWords) {
    for (const std::string command : {"plan llama3_8b --cluster h100", "check llama3_8b --cluster h100", "clusters"}) {
        const std::string wide = s.lockstep(command).out;
        for (const std::string& line : lines_of(on_terminal(60, command, "NO_COLOR=1"))) {
            if (line.starts_with("Script ") || line.find('\033') != std::string::npos) continue;
            EXPECT_LE(line.size(), 60u) << command << ": " << line;
            const std::string last = line.substr(line.find_last_of(' ') + 1);
            EXPECT_TRUE(has(wide + " ", last + " ") || has(wide, last + "\n") || line.starts_with("["))
                << command << ": " << line;
        }
    }
}

}  // namespace
}  // namespace lockstep::testing
