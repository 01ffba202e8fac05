// What a user sees: start, steps, help, logs for programs.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <regex>

#include "base/processors.h"
#include "telemetry/machine.h"
#include "telemetry/wrap.h"
#include "tests/cli/command.h"

namespace lockstep::testing {
namespace {

void expect_no_longer_than(size_t columns, const std::string& text, const std::string& of) {
    EXPECT_FALSE(text.empty()) << of;
    for (const std::string& line : lines_of(text)) EXPECT_LE(line.size(), columns) << of << ": " << line;
}

// What a terminal of this number of columns shows, without carriage returns. `script` makes the terminal.
std::string on_a_terminal(const Scratch& s, int columns, const std::string& arguments, const std::string& environment = "") {
    s.shell(fmt::format(
        "{} TERM=xterm LOCKSTEP=$LOCKSTEP script -qec 'stty cols {}; $LOCKSTEP {}' shown.txt >out.txt 2>err.txt </dev/null",
        environment, columns, arguments));
    return std::regex_replace(s.read("shown.txt"), std::regex("\r"), "");
}

TEST(CliConsole, StartAndStepsFitIntoEightyColumns) {
    Scratch s;
    s.write("r.toml", training_recipe(6) + "[checkpoint]\nenable = true\n");
    const Finished f =
        s.lockstep("train r.toml --parallelism.tensor_parallel_degree 2 --parallelism.data_parallel_shard_degree 2");
    ASSERT_EQ(f.code, 0) << f.err;
    expect_no_longer_than(80, f.err, "train");
    EXPECT_EQ(f.err.find('\033'), std::string::npos) << "no colours in a file";
    for (const char* part :
         {"llama3 debugmodel, 5,", " parameters, 64 tokens a step", "4 ranks (dp_replicate 1 x dp_shard 2 x tp 2), 1 thread each",
          "2 microbatches of 2 sequences", "memory planned: ", "peak for MFU: ", "     step    loss   norm       lr  tok/s ",
          "FLOP/s   MFU   memory time left\n      1/6 ", "\n      6/6 "})
        EXPECT_TRUE(has(f.err, part)) << part << " in\n" << f.err;
    EXPECT_TRUE(has(s.lockstep("train r.toml --job.dump_folder one").err, "1 rank (")) << "not 1 ranks";
}

TEST(CliConsole, OnATerminalLinesWrapBetweenWordsAtItsWidth) {
    Scratch s;
    s.write("r.toml", training_recipe(6));
    const std::regex controls("\033\\[[0-9;]*[mK]");
    const std::string shown = on_a_terminal(s, 50, "train r.toml --metrics.log_freq 2");
    ASSERT_TRUE(has(shown, "6/6")) << shown;
    EXPECT_TRUE(has(shown, "\033[32m")) << "colours on a terminal\n" << shown;
    std::string plain = std::regex_replace(shown, controls, "\n");  // a bar that was removed ends there
    for (const std::string& line : lines_of(plain)) {
        if (!line.starts_with("Script ")) {
            EXPECT_LE(line.size(), 50u) << line;
        }
    }
    const std::string without = on_a_terminal(s, 50, "train r.toml --job.dump_folder b", "NO_COLOR=1");
    EXPECT_TRUE(has(without, "6/6"));
    EXPECT_FALSE(has(without, "\033[32m")) << without;
    EXPECT_FALSE(
        has(on_a_terminal(s, 50, "train r.toml --job.dump_folder c --metrics.disable_color_printing true"), "\033[32m["));
    expect_no_longer_than(80, s.lockstep("train --help").out, "train --help");
    const std::string help = on_a_terminal(s, 60, "train --help");
    EXPECT_TRUE(has(help, "--trace-step"));
    for (const std::string& line : lines_of(help)) {
        if (!line.starts_with("Script ")) {
            EXPECT_LE(line.size(), 60u) << line;
        }
    }
}

TEST(CliConsole, HelpOfEveryCommandAndEveryKeyFitsIntoEightyColumns) {
    Scratch s;
    for (const char* command : {"", "train", "check", "plan", "show", "schedule", "diff", "eval", "sample", "convert",
                                "data prepare", "bench", "launch", "report", "recipe", "new", "tune", "clusters", "help"}) {
        const Finished f = s.lockstep(fmt::format("{} --help", command));
        EXPECT_EQ(f.code, 0) << command;
        expect_no_longer_than(80, f.out, command);
    }
    expect_no_longer_than(80, s.lockstep("recipe").out, "recipe");
    EXPECT_TRUE(has(s.lockstep("recipe training.steps").out, "training.steps = 10000\n    optimizer steps\n"));
}

TEST(CliConsole, QuietSaysWarningsAndErrorsOnly) {
    Scratch s;
    s.write("r.toml", training_recipe(6));
    EXPECT_EQ(s.lockstep("train r.toml --quiet").err, "");
    EXPECT_EQ(s.lockstep("check r.toml --quiet").err, "");
    EXPECT_TRUE(has(s.lockstep("train missing.toml --quiet").err, "missing.toml: cannot be read"));
    const Finished warned = s.lockstep(
        "train r.toml --quiet --checkpoint.enable true --checkpoint.export_dtype bfloat16 --checkpoint.last_save_model_only "
        "false");
    EXPECT_TRUE(has(warned.err, "checkpoint.export_dtype = bfloat16 does nothing")) << warned.err;
}

TEST(CliConsole, LogsForProgramsAreOneObjectALine) {
    Scratch s;
    s.write("r.toml", training_recipe(6));
    const Finished f = s.lockstep("train r.toml --log-format json --json");
    ASSERT_EQ(f.code, 0) << f.err;
    EXPECT_EQ(f.json()["steps"], 6);
    int64_t steps = 0;
    for (const std::string& line : lines_of(f.err)) {
        const nlohmann::json j = nlohmann::json::parse(line);
        EXPECT_TRUE(std::regex_match(j["time"].get<std::string>(), std::regex(R"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z)")))
            << line;
        EXPECT_EQ(j["level"], "info");
        EXPECT_TRUE(j["text"].is_string());
        if (!j.contains("step")) continue;
        EXPECT_EQ(j["step"], ++steps);
        for (const char* key : {"loss", "grad_norm", "lr", "tokens_per_s", "flops_per_s", "memory_bytes", "left_s", "mfu"})
            EXPECT_TRUE(j[key].is_number()) << key;
    }
    EXPECT_EQ(steps, 6);
    const Finished refused = s.lockstep("check missing.toml --log-format json");
    EXPECT_EQ(nlohmann::json::parse(lines_of(refused.err).at(0))["level"], "error");
    EXPECT_EQ(s.lockstep("train r.toml --log-format xml").code, 2);
}

TEST(CliConsole, AllCoresByDefaultAndTheSameBitsOnAnyNumberOfThem) {
    Scratch s;
    s.write("r.toml", training_recipe(6));
    const Finished f = s.lockstep("train r.toml --json");
    ASSERT_EQ(f.code, 0) << f.err;
    EXPECT_TRUE(has(f.err, ", " + telemetry::plural(static_cast<int64_t>(usable_cpus().size()), "thread") + " each")) << f.err;
    for (int threads : {1, 2, 3}) {
        const Finished other =
            s.lockstep(fmt::format("train r.toml --json --job.dump_folder t{0} --runtime.threads_per_rank {0}", threads));
        EXPECT_EQ(other.json()["final_loss"], f.json()["final_loss"]) << threads;
    }
}

TEST(CliConsole, AGpuIsSeenByItsDriver) {
    ScratchFolder s;
    EXPECT_EQ(telemetry::gpu_device(s.path("")), "");
    std::filesystem::create_directories(s.path("dev/kfd"));
    EXPECT_EQ(telemetry::gpu_device(s.path("")), "/dev/kfd");
    std::filesystem::create_directories(s.path("proc/driver/nvidia/version"));
    EXPECT_EQ(telemetry::gpu_device(s.path("")), "/proc/driver/nvidia/version");
    EXPECT_GT(telemetry::this_machine().cores, 0);
    EXPECT_FALSE(telemetry::this_machine().processor.empty());
}

}  // namespace
}  // namespace lockstep::testing
