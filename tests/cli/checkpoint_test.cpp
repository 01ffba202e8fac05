// Long runs as a user meets them: what is saved when, what a run goes on from, and how it ends.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <vector>

#include "base/output_file.h"
#include "tests/cli/command.h"
#include "tests/paths.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;

std::string recipe(const std::string& checkpoint = "") {
    return training_recipe(
        6, "[parallelism]\ndata_parallel_shard_degree = 2\n[checkpoint]\nenable = true\ninterval = 2\n" + checkpoint);
}

std::vector<std::string> files(const Scratch& s, const std::string& root = "out/checkpoint") {
    std::vector<std::string> names;
    for (const fs::directory_entry& e : fs::directory_iterator(s.path(root))) {
        if (e.path().filename() != FolderLock::kFile) names.push_back(e.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
}

// Losses by step, as text, so that equal means equal bits; a step that was done twice must have given the same both times.
std::map<int64_t, std::string> losses(const Scratch& s, const std::string& dump = "out") {
    std::map<int64_t, std::string> out;
    for (const nlohmann::json& j : s.objects(dump + "/metrics.jsonl")) {
        const std::string loss = j["loss_metrics/global_avg_loss"].dump() + " " + j["grad_norm"].dump();
        const auto [it, is_new] = out.emplace(j["step"].get<int64_t>(), loss);
        EXPECT_EQ(it->second, loss) << j;
    }
    return out;
}

TEST(CliCheckpoint, BesideTrainingAndKeepingTheLatest) {
    Scratch s;
    s.write("r.toml", recipe("keep_latest_k = 2\nenable_first_step_checkpoint = true\n"));
    ASSERT_EQ(s.lockstep("train r.toml --job.dump_folder waited").code, 0);
    const Finished f = s.lockstep("train r.toml --checkpoint.async_mode async --json");
    ASSERT_EQ(f.code, 0) << f.err;
    EXPECT_EQ(files(s), (std::vector<std::string>{"step-00000004", "step-00000006"}));
    for (const char* file : {"model.safetensors", "optimizer.safetensors"}) {
        EXPECT_TRUE(s.read(std::string("out/checkpoint/step-00000006/") + file) ==
                    s.read(std::string("waited/checkpoint/step-00000006/") + file))
            << file;
    }
    EXPECT_EQ(f.json()["checkpoints_written"], 4);  // 1, 2, 4, 6
    EXPECT_GT(f.json()["checkpoint_stall_s"].get<double>(), 0);
    EXPECT_EQ(f.json()["checkpoint"], "out/checkpoint/step-00000006");
    EXPECT_TRUE(f.json()["stopped"].is_null());
    const nlohmann::json with = s.lockstep("check r.toml --json --checkpoint.async_mode async").json(),
                         without = s.lockstep("check r.toml --json").json();
    EXPECT_EQ(without["stages"][0]["bytes"]["snapshot"], 0);
    EXPECT_EQ(with["stages"][0]["bytes"]["snapshot"].get<int64_t>() + without["stages"][0]["bytes"]["total"].get<int64_t>(),
              with["stages"][0]["bytes"]["total"].get<int64_t>());
    EXPECT_GT(with["stages"][0]["bytes"]["snapshot"], 0);
    EXPECT_EQ(with["stages"][0]["host_bytes"], 0) << "a processor has one memory";
    EXPECT_TRUE(has(s.lockstep("check r.toml --checkpoint.async_mode later").err, "[recipe.unknown_word]"));
}

// On a device copies lie in the host's memory: `check` and `plan` say how many bytes, and hold neither against the device's.
TEST(CliCheckpoint, CopiesForCheckpointsAreOutsideADevicesMemory) {
    Scratch s;
    s.write("r.toml", recipe());
    const std::string on_h100 = " --cluster " LOCKSTEP_SOURCE_DIR "/clusters/h100.toml";
    for (const std::string command : {"check r.toml", "plan r.toml"}) {
        const Finished beside = s.lockstep(command + on_h100 + " --checkpoint.async_mode async --json"),
                       waits = s.lockstep(command + on_h100 + " --json");
        ASSERT_EQ(beside.code, 0) << beside.err;
        ASSERT_EQ(waits.code, 0) << waits.err;
        const nlohmann::json with = beside.json()["stages"][0], without = waits.json()["stages"][0];
        EXPECT_EQ(with["bytes"], without["bytes"]);
        EXPECT_EQ(with["bytes"]["snapshot"], 0);
        EXPECT_EQ(without["host_bytes"], 0);
        const int64_t host = with["host_bytes"];
        EXPECT_GT(host, 0);
        const Finished text = s.lockstep(command + on_h100 + " --checkpoint.async_mode async");
        EXPECT_TRUE(has(text.out, fmt::format("host memory    {:>16}", host))) << text.out;
        EXPECT_FALSE(has(s.lockstep(command + on_h100).out, "host memory"));
    }
    // Memory with no byte more than the program needs without copies.
    const auto fits = [&](const std::string& machine) {
        const nlohmann::json needed = s.lockstep("check r.toml --json" + machine).json()["stages"][0]["bytes"]["total"];
        const std::string tight = fmt::format(" --cluster.reserve_gib_per_rank 0 --cluster.memory_gib_per_rank {:.17g}",
                                              needed.get<double>() / (1 << 30));
        EXPECT_EQ(s.lockstep("check r.toml" + machine + tight).code, 0);
        return s.lockstep("check r.toml --checkpoint.async_mode async" + machine + tight).code == 0;
    };
    EXPECT_TRUE(fits(on_h100));
    EXPECT_FALSE(fits("")) << "a processor has one memory";
}

TEST(CliCheckpoint, GoesOnFromTheLastOneThatIsWhole) {
    Scratch s;
    s.write("r.toml", recipe());
    ASSERT_EQ(s.lockstep("train r.toml --job.dump_folder whole").code, 0);
    ASSERT_EQ(s.lockstep("train r.toml").code, 0);
    std::fstream(s.path("out/checkpoint/step-00000006/optimizer.safetensors"), std::ios::in | std::ios::out | std::ios::binary)
        .seekp(3000)
        .put('\x55');
    fs::resize_file(s.path("out/checkpoint/step-00000004/model.safetensors"), 5000);
    fs::create_directories(s.path("out/checkpoint/step-00000008.partial"));
    Finished f = s.lockstep("train r.toml --checkpoint.load_step 6");
    EXPECT_EQ(f.code, 1);
    EXPECT_TRUE(has(f.err, "[checkpoint.cannot_resume]")) << f.err;
    EXPECT_TRUE(has(f.err, "optimizer.safetensors: the bytes 0 to ")) << f.err;
    EXPECT_TRUE(has(f.err, "the last good checkpoint is that of step 2: checkpoint.load_step = 2")) << f.err;
    f = s.lockstep("train r.toml");
    ASSERT_EQ(f.code, 0) << f.err;
    EXPECT_TRUE(has(f.err, "step-00000006 is left aside")) << f.err;
    EXPECT_TRUE(has(f.err, "step-00000004 is left aside")) << f.err;
    EXPECT_TRUE(has(f.err, "resumed from out/checkpoint/step-00000002 at step 2")) << f.err;
    EXPECT_EQ(files(s), (std::vector<std::string>{"step-00000002", "step-00000004", "step-00000006"}));
    EXPECT_EQ(losses(s), losses(s, "whole"));
    EXPECT_TRUE(s.read("out/checkpoint/step-00000006/model.safetensors") ==
                s.read("whole/checkpoint/step-00000006/model.safetensors"));
    fs::remove_all(s.path("out/checkpoint/step-00000004"));
    fs::remove_all(s.path("out/checkpoint/step-00000006"));
    s.write("out/checkpoint/step-00000002/manifest.json", "{\"version\": 2");
    f = s.lockstep("train r.toml");
    EXPECT_EQ(f.code, 1);
    EXPECT_TRUE(has(f.err, "[checkpoint.none_whole]")) << f.err;
    EXPECT_TRUE(has(f.err, "Choose another checkpoint.folder to begin anew")) << f.err;
}

TEST(CliCheckpoint, StartsFromAnotherRunsCheckpoint) {
    Scratch s;
    s.write("r.toml", recipe());
    ASSERT_EQ(s.lockstep("train r.toml --job.dump_folder other --training.steps 4 --lr_scheduler.total_steps 6").code, 0);
    Finished f = s.lockstep("train r.toml --checkpoint.initial_load_path other/checkpoint/step-00000002 --json");
    ASSERT_EQ(f.code, 0) << f.err;
    EXPECT_TRUE(has(f.err, "resumed from other/checkpoint/step-00000002 at step 0")) << f.err;
    EXPECT_EQ(losses(s).size(), 6u);
    f = s.lockstep(
        "train r.toml --job.dump_folder all --checkpoint.initial_load_path other/checkpoint --checkpoint.initial_load_model_only "
        "false --json");
    ASSERT_EQ(f.code, 0) << f.err;
    EXPECT_TRUE(has(f.err, "resumed from other/checkpoint/step-00000004 at step 4")) << f.err;
    EXPECT_EQ(losses(s, "all").size(), 2u);
    ASSERT_EQ(s.lockstep("train r.toml --job.dump_folder whole").code, 0);
    EXPECT_TRUE(s.read("all/checkpoint/step-00000006/model.safetensors") ==
                s.read("whole/checkpoint/step-00000006/model.safetensors"));
    f = s.lockstep("train r.toml --job.dump_folder none --checkpoint.initial_load_path absent");
    EXPECT_EQ(f.code, 1);
    EXPECT_TRUE(has(f.err, "absent holds no complete checkpoint")) << f.err;
    fs::resize_file(s.path("other/checkpoint/step-00000004/model.safetensors"), 5000);
    f = s.lockstep("train r.toml --job.dump_folder none --checkpoint.initial_load_path other");
    EXPECT_EQ(f.code, 1);
    EXPECT_TRUE(has(f.err, "checkpoint.initial_load_path: other/checkpoint/step-00000004/model.safetensors has 5000 bytes"))
        << f.err;
    EXPECT_TRUE(has(f.err, "[checkpoint.initial_load]")) << f.err;
    f = s.lockstep("train r.toml --checkpoint.enable false --checkpoint.initial_load_path other/checkpoint");
    EXPECT_TRUE(has(f.err, "checkpoint.initial_load_path is set, but checkpoints are off")) << f.err;
    EXPECT_TRUE(has(f.err, "[recipe.checkpoint_off]")) << f.err;
}

TEST(CliCheckpoint, LeavesOutWhatIsExcludedAndKeepsTheSeed) {
    Scratch s;
    s.write("r.toml", recipe());
    Finished f = s.lockstep("train r.toml --checkpoint.create_seed_checkpoint true --json");
    ASSERT_EQ(f.code, 0) << f.err;
    EXPECT_EQ(files(s), (std::vector<std::string>{"step-00000000"}));
    EXPECT_EQ(f.json()["steps"], 0);
    ASSERT_EQ(s.lockstep("train r.toml").code, 0);
    f = s.lockstep("train r.toml --checkpoint.load_step 2 --checkpoint.exclude_from_loading '[\"train_state\", \"optimizer\"]'");
    ASSERT_EQ(f.code, 0) << f.err;
    EXPECT_TRUE(has(f.err, "resumed from out/checkpoint/step-00000002 at step 0")) << f.err;
    f = s.lockstep("train r.toml --checkpoint.exclude_from_loading '[\"lr_scheduler\"]'");
    EXPECT_EQ(f.code, 1);
    EXPECT_TRUE(has(f.err, "checkpoint.exclude_from_loading = [\"lr_scheduler\"]: must be optimizer, dataloader or train_state"))
        << f.err;
    EXPECT_TRUE(has(f.err, "[recipe.unknown_word]")) << f.err;
    const auto before = fs::last_write_time(s.path("out/checkpoint"));
    ASSERT_EQ(s.lockstep("train r.toml --checkpoint.load_only true --training.steps 8").code, 0);
    EXPECT_EQ(fs::last_write_time(s.path("out/checkpoint")), before);
}

TEST(CliCheckpoint, TheLastMayHoldTheModelAlone) {
    Scratch s;
    s.write("r.toml", recipe("last_save_model_only = true\n"));
    ASSERT_EQ(s.lockstep("train r.toml").code, 0);
    EXPECT_EQ(files(s, "out/checkpoint/step-00000006"), (std::vector<std::string>{"manifest.json", "model.safetensors"}));
    EXPECT_EQ(s.lockstep("train r.toml").code, 0) << "nothing is left to do";
    const Finished f = s.lockstep("train r.toml --training.steps 7");
    ASSERT_EQ(f.code, 0) << f.err;
    EXPECT_TRUE(has(f.err, "step-00000006 is left aside: checkpoint out/checkpoint/step-00000006 holds no optimizer.safetensors"))
        << f.err;
    EXPECT_TRUE(has(f.err, "resumed from out/checkpoint/step-00000004")) << f.err;
}

// A recipe that says nothing of its checkpoints but that they are written: shorter than checkpoint.interval. As it is, without
// what Scratch::write would add.
const char* const kShortRun = R"([model]
dim = 16
n_layers = 1
n_heads = 2
n_kv_heads = 2
vocab_size = 64
[training]
dataset = "synthetic"
seq_len = 16
global_batch_size = 2
steps = 60
[lr_scheduler]
warmup_steps = 10
total_steps = 120
[checkpoint]
enable = true
[metrics]
log_freq = 1
)";

TEST(CliCheckpoint, AShortRunGoesOnWithTheSameBits) {
    Scratch s;
    s.ScratchFolder::write("r.toml", kShortRun);
    Finished f = s.lockstep("train r.toml --job.dump_folder two");
    ASSERT_EQ(f.code, 0) << f.err;
    EXPECT_FALSE(has(f.err, "only the model")) << f.err;
    EXPECT_EQ(files(s, "two/checkpoint/step-00000060"),
              (std::vector<std::string>{"manifest.json", "model.safetensors", "optimizer.safetensors"}));
    f = s.lockstep("train r.toml --job.dump_folder two --training.steps 120");
    ASSERT_EQ(f.code, 0) << f.err;
    EXPECT_TRUE(has(f.err, "resumed from two/checkpoint/step-00000060 at step 60")) << f.err;
    ASSERT_EQ(s.lockstep("train r.toml --job.dump_folder one --training.steps 120").code, 0);
    const auto two = losses(s, "two"), one = losses(s, "one");
    EXPECT_EQ(one.size(), 120u);
    EXPECT_EQ(two, one);
    for (const char* file : {"model.safetensors", "optimizer.safetensors"})
        EXPECT_EQ(s.read(std::string("two/checkpoint/step-00000120/") + file),
                  s.read(std::string("one/checkpoint/step-00000120/") + file));
}

// Where the last checkpoint is the model alone, the end of the run says so, and the refusal says what helps. A file of torchtitan
// has that by default.
TEST(CliCheckpoint, TheModelAloneIsSaidWithWhatHelps) {
    Scratch s;
    s.ScratchFolder::write("r.toml", kShortRun);
    s.ScratchFolder::write("theirs.toml",
                           "[model]\nname = \"llama3\"\nflavor = \"debugmodel\"\n[profiling]\nenable_profiling = false\n");
    const std::string small =
        " --training.dataset synthetic --training.seq_len 16 --training.local_batch_size 1 --model.vocab_size 64 "
        "--model.n_layers 1 --checkpoint.enable true --training.steps ";
    const std::pair<std::string, std::string> cases[] = {
        {"train r.toml --checkpoint.last_save_model_only true --training.steps ", "flag --checkpoint.last_save_model_only: "},
        {"train theirs.toml" + small, "theirs.toml (torchtitan's default): "}};
    for (const auto& [command, where] : cases) {
        const std::string folder = where.starts_with("flag") ? " --job.dump_folder a" : " --job.dump_folder b";
        Finished f = s.lockstep(command + "3" + folder);
        ASSERT_EQ(f.code, 0) << f.err;
        const std::string last = folder.substr(folder.rfind(' ') + 1) + "/checkpoint/step-00000003";
        EXPECT_TRUE(has(f.err, "the last checkpoint is only the model (" + where +
                                   "checkpoint.last_save_model_only = true): this run cannot go on from it with more steps"))
            << f.err;
        EXPECT_TRUE(has(f.err, "checkpoint.initial_load_path = \"" + last + "\"")) << f.err;
        f = s.lockstep(command + "6" + folder);
        EXPECT_EQ(f.code, 1);
        EXPECT_TRUE(has(f.err, "[checkpoint.none_whole]")) << f.err;
        EXPECT_TRUE(has(f.err, "only the model was saved, as checkpoint.last_save_model_only or last_save_in_hf asked for"))
            << f.err;
        EXPECT_TRUE(has(f.err, "checkpoint.initial_load_path = \"" + last + "\"")) << f.err;
        f = s.lockstep(command + "6" + folder + "_new --checkpoint.initial_load_path " + last);
        EXPECT_EQ(f.code, 0) << "what the message names works: " << f.err;
        f = s.lockstep("report" + folder.substr(folder.rfind(' ')) + " --json");
        EXPECT_EQ(f.json()["run"]["status"], "done") << "a refused start is no end of a run";
        EXPECT_EQ(f.json()["run"]["starts"], 1);
    }
}

TEST(CliCheckpoint, NoStepsAreNoTraining) {
    Scratch s;
    s.ScratchFolder::write("r.toml", kShortRun);
    const Finished f = s.lockstep("train r.toml --training.steps=0");
    EXPECT_EQ(f.code, 0) << f.err;
    EXPECT_TRUE(has(f.err, "training.steps = 0: nothing was trained")) << f.err;
}

TEST(CliCheckpoint, AVocabularyGrowsWhereARunBeginsWithWeights) {
    Scratch s;
    s.ScratchFolder::write("r.toml", kShortRun);
    ASSERT_EQ(s.lockstep("train r.toml --training.steps 1 --job.dump_folder a").code, 0);
    const std::string from = "train r.toml --training.steps 1 --checkpoint.initial_load_path a/checkpoint --job.dump_folder ";
    Finished f = s.lockstep(from + "b --model.vocab_size 70");
    EXPECT_EQ(f.code, 0) << f.err;
    EXPECT_TRUE(has(f.err, "model.vocab_size is 6 larger than that of a/checkpoint")) << f.err;
    f = s.lockstep(from + "e --model.vocab_size 60");
    EXPECT_EQ(f.code, 1);
    EXPECT_TRUE(has(f.err, "holds a model with model.vocab_size = 64, but the recipe has 60. A vocabulary grows only where"))
        << f.err;
    EXPECT_TRUE(has(f.err, "[checkpoint.other_architecture]")) << f.err;
    std::string text;
    for (int i = 0; i < 200; ++i) text += "the quick brown fox ";
    s.write("text.txt", text);
    ASSERT_EQ(s.lockstep("data prepare text.txt --out d --tokenizer bytes").code, 0);
    f = s.lockstep(from + "c --training.dataset prepared --training.dataset_path d");
    EXPECT_EQ(f.code, 1);
    EXPECT_TRUE(has(f.err, "raise it, or leave it out; the weights of checkpoint.initial_load_path then get new rows")) << f.err;
}

TEST(CliCheckpoint, TwoJobsOnOneFolder) {
    Scratch s;
    s.write("r.toml", recipe());
    const FolderLock held(s.path("out"));
    Finished f = s.lockstep("train r.toml");
    EXPECT_EQ(f.code, 1);
    EXPECT_TRUE(has(f.err, fmt::format("out is in use by process {} on ", getpid()))) << f.err;
    EXPECT_TRUE(has(f.err, "[folder.in_use]")) << f.err;
    const FolderLock checkpoints(s.path("of_two"));
    f = s.lockstep("train r.toml --job.dump_folder other --checkpoint.folder ../of_two");
    EXPECT_EQ(f.code, 1);
    EXPECT_TRUE(has(f.err, "of_two is in use by process ")) << f.err;
    s.write("text.txt", std::string(4000, 'a') + " words\n");
    const FolderLock data(s.path("d"));
    f = s.lockstep("data prepare text.txt --out d --tokenizer bytes");
    EXPECT_EQ(f.code, 1);
    EXPECT_TRUE(has(f.err, fmt::format("d is in use by process {} on ", getpid()))) << f.err;
}

TEST(CliCheckpoint, APreparationThatWasKilledDoesNotStandInTheWay) {
    Scratch s;
    s.write("text.txt", std::string(4000, 'a') + " words\n");
    fs::create_directories(s.path("d"));
    for (const char* left : {"d/train.tokens.partial", "d/heldout.tokens", "d/.lock"}) s.write(left, "x");
    Finished f = s.lockstep("data prepare text.txt --out d --tokenizer bytes --json");
    ASSERT_EQ(f.code, 0) << f.err;
    EXPECT_FALSE(f.json()["was_prepared_already"]);
    EXPECT_FALSE(fs::exists(s.path("d/train.tokens.partial")));
    f = s.lockstep("data prepare text.txt --out d --tokenizer bytes --json");
    ASSERT_EQ(f.code, 0) << f.err;
    EXPECT_TRUE(f.json()["was_prepared_already"]);
}

TEST(CliCheckpoint, AFileLimitIsSaidAndTheLastCheckpointNamed) {
    Scratch s;
    s.write("r.toml", recipe());
    ASSERT_EQ(s.lockstep("train r.toml --training.steps 2 --lr_scheduler.total_steps 6").code, 0);
    const std::string command =
        fmt::format("cd '{}' && ulimit -f 4 && '{}' train r.toml > out.txt 2> err.txt", s.path("."), LOCKSTEP_BINARY);
    const int status = std::system(("bash -c \"" + command + "\"").c_str());
    EXPECT_EQ(WEXITSTATUS(status), 1);
    const std::string said = s.read("err.txt");
    EXPECT_NE(said.find("write failed: File too large"), std::string::npos) << said;
    EXPECT_NE(said.find("The last complete checkpoint is out/checkpoint/step-00000002."), std::string::npos) << said;
    EXPECT_EQ(files(s), (std::vector<std::string>{"step-00000002"}));
}

TEST(CliStop, ATimeLimitEndsWithACheckpointAndCode4) {
    Scratch s;
    s.write("r.toml", recipe("async_mode = \"async\"\n"));
    const std::string endless =
        " --training.steps 100000000 --lr_scheduler.decay_ratio 0.1 --metrics.log_freq 100000 --checkpoint.interval 100000";
    Finished f = s.lockstep("train r.toml --json --training.max_time 2" + endless);
    EXPECT_EQ(f.code, 4) << f.err;
    EXPECT_EQ(f.json()["stopped"], "time");
    EXPECT_TRUE(has(f.err, "stopped by training.max_time = 2 s after step")) << f.err;
    EXPECT_TRUE(has(f.err, "checkpoint written: out/checkpoint/step-")) << f.err;
    const int64_t steps = f.json()["steps"];
    EXPECT_EQ(f.json()["checkpoint"], fmt::format("out/checkpoint/step-{:08}", steps));
    f = s.lockstep("train r.toml --training.max_time 0:00:01 --checkpoint.enable false" + endless);
    EXPECT_EQ(f.code, 3) << f.err;
    EXPECT_TRUE(has(f.err, "nothing was saved, since checkpoint.enable is false")) << f.err;
    for (const char* wrong : {"soon", "1:30", "1:x:3", "::"}) {
        f = s.lockstep(fmt::format("train r.toml --training.max_time {}", wrong));
        EXPECT_EQ(f.code, 1) << wrong;
        EXPECT_TRUE(
            has(f.err, "must be empty or seconds (\"3600\") or hours:minutes:seconds (\"1:30:00\") [recipe.unknown_word]"))
            << f.err;
    }
}

TEST(CliStop, StepsThatAreNotFiniteStopTheRunAndNameTheLastCheckpoint) {
    Scratch s;
    s.write("bad.toml", recipe());
    ASSERT_EQ(s.lockstep("train bad.toml --training.steps 2 --lr_scheduler.total_steps 100").code, 0);
    const std::string wild = "train bad.toml --json --training.steps 100 --optimizer.lr 1e6 --lr_scheduler.decay_ratio 0.0";
    const Finished f = s.lockstep(wild + " --training.max_nonfinite_steps 3");
    EXPECT_EQ(f.code, 3) << f.err;
    EXPECT_TRUE(has(f.err, "stopped: 3 steps in a row were not finite (training.max_nonfinite_steps) after step")) << f.err;
    EXPECT_TRUE(has(f.err, "; the last good checkpoint is out/checkpoint/step-0000000")) << f.err;
    EXPECT_TRUE(has(f.err, "not finite, so the step does not count and no state has changed")) << f.err;
    EXPECT_EQ(f.json()["stopped"], "non_finite");
    const int64_t stopped = f.json()["steps"];
    EXPECT_LT(stopped, 10);
    for (const std::string& name : files(s))
        EXPECT_LE(name, fmt::format("step-{:08}", stopped - 3)) << "of a step that did not count";
    const Finished never = s.lockstep(wild + " --training.max_nonfinite_steps 0 --training.steps 20 --job.dump_folder never");
    EXPECT_EQ(never.code, 0) << never.err;
    EXPECT_TRUE(has(s.lockstep("train bad.toml --training.max_nonfinite_steps -1").err,
                    "training.max_nonfinite_steps = -1: must be from 0 to 1000000000000 [recipe.out_of_range]"));
}

// Killed at random moments, again and again, until it is done: the losses are those of a run that was left alone.
TEST(CliCheckpoint, KilledAtRandomMomentsNothingIsLost) {
    Scratch s;
    s.write("r.toml", recipe("async_mode = \"async\"\nkeep_latest_k = 2\n"));
    const std::string steps = " --training.steps 500 --checkpoint.interval 10";
    ASSERT_EQ(s.lockstep("train r.toml --job.dump_folder whole" + steps).code, 0);
    uint64_t random = 12345;
    int killed = 0;
    for (int attempt = 0; attempt < 200; ++attempt) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        const double after_s = 0.03 + 0.001 * static_cast<double>((random >> 33) % 200);
        const std::string command =
            fmt::format("cd '{}' && timeout --foreground -s KILL {} '{}' train r.toml{} > out.txt 2> err.txt", s.path("."),
                        after_s, LOCKSTEP_BINARY, steps);
        const int status = std::system(command.c_str());
        const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 137;
        if (code == 0) break;
        ASSERT_EQ(code, 137) << s.read("err.txt");
        if (++killed == 8) {
            ASSERT_EQ(s.lockstep("train r.toml" + steps).code, 0);
            break;
        }
    }
    EXPECT_GT(killed, 0);
    EXPECT_EQ(losses(s), losses(s, "whole"));
    EXPECT_TRUE(s.read("out/checkpoint/step-00000500/model.safetensors") ==
                s.read("whole/checkpoint/step-00000500/model.safetensors"));
}

}  // namespace
}  // namespace lockstep::testing
