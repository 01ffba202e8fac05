// The command line with ranks in several processes of mpirun: what a user sees is what one process shows, once.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "comm/mpi/session.h"
#include "tests/cli/command.h"

namespace lockstep::testing {
namespace {

const char* kEveryThreeSteps = R"([checkpoint]
enable = true
interval = 3
)";

const char* kFourRanks = " --parallelism.tensor_parallel_degree 2 --parallelism.data_parallel_shard_degree 2";
const char* kPipeline =
    " --parallelism.pipeline_parallel_degree 2 --parallelism.tensor_parallel_degree 2 --checkpoint.async_mode async";

class CliProcesses : public ::testing::Test {
protected:
    void SetUp() override {
        if (!comm::mpi::is_built()) GTEST_SKIP() << "built without MPI";
        s.write("r.toml", training_recipe(6, kEveryThreeSteps));
    }

    // Steps with their losses and norms, as printed in metrics.jsonl.
    std::string steps_of(const std::string& folder) const {
        std::string out;
        for (const nlohmann::json& m : s.objects(folder + "/metrics.jsonl"))
            out += fmt::format("{} {} {}\n", m["step"].dump(), m["loss_metrics/global_avg_loss"].dump(), m["grad_norm"].dump());
        return out;
    }
    void expect_same_files(const std::string& a, const std::string& b, int step) const {
        for (const char* file : {"model.safetensors", "optimizer.safetensors"}) {
            const std::string path = fmt::format("/checkpoint/step-{:08}/{}", step, file), one = s.read(a + path);
            EXPECT_FALSE(one.empty()) << a << path;
            EXPECT_TRUE(one == s.read(b + path)) << b << path;
        }
    }
    // The flags that train on text, which it prepares.
    std::string prepared() const {
        std::string text;
        for (int i = 0; i < 400; ++i) text += fmt::format("line {} of a text\n", i * 7919 % 1000);
        s.prepare({text});
        return " --training.dataset prepared --training.dataset_path d --model.vocab_size 257 --training.steps 3";
    }
    static size_t count(const std::string& text, const std::string& part) {
        size_t n = 0;
        for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
        return n;
    }

    Scratch s;
};

TEST_F(CliProcesses, TrainAsThreadsDo) {
    for (const char* layout : {kFourRanks, kPipeline}) {
        const Finished threads = s.lockstep(fmt::format("train r.toml --json --job.dump_folder threads{}", layout));
        ASSERT_EQ(threads.code, 0) << threads.err;
        for (int processes : {2, 4}) {
            const std::string folder = fmt::format("processes{}", processes);
            const Finished f =
                s.in_processes(processes, fmt::format("train r.toml --json --job.dump_folder {}{}", folder, layout));
            ASSERT_EQ(f.code, 0) << f.err;
            EXPECT_EQ(count(f.err, fmt::format(" in {} processes on 1 host\n", processes)), 1u) << f.err;
            EXPECT_EQ(count(f.err, "written: "), 0u);
            EXPECT_EQ(f.json()["final_loss"], threads.json()["final_loss"]);
            EXPECT_EQ(f.json()["peak_bytes_planned"], threads.json()["peak_bytes_planned"]);
            EXPECT_EQ(steps_of(folder), steps_of("threads"));
            expect_same_files("threads", folder, 3);
            expect_same_files("threads", folder, 6);
            std::filesystem::remove_all(s.path(folder));
        }
        std::filesystem::remove_all(s.path("threads"));
    }
}

TEST_F(CliProcesses, GoOnWhereOtherProcessesStopped) {
    ASSERT_EQ(s.lockstep(fmt::format("train r.toml --job.dump_folder whole{}", kFourRanks)).code, 0);
    const std::string parts = fmt::format("train r.toml --job.dump_folder parts --lr_scheduler.total_steps 6{}", kFourRanks);
    ASSERT_EQ(s.in_processes(4, parts + " --training.steps 3").code, 0);
    const Finished second = s.in_processes(2, parts);
    ASSERT_EQ(second.code, 0) << second.err;
    EXPECT_EQ(count(second.err, "resumed from parts/checkpoint/step-00000003 at step 3\n"), 1u) << second.err;
    expect_same_files("whole", "parts", 6);
}

TEST_F(CliProcesses, EvaluateAsThreadsDo) {
    const std::string train = prepared() + " --validation.enable true --validation.freq 3 --validation.steps 4";
    const Finished threads = s.lockstep("train r.toml --json --job.dump_folder a" + train + kPipeline),
                   processes = s.in_processes(4, "train r.toml --json --job.dump_folder b" + train + kPipeline);
    ASSERT_EQ(threads.code, 0) << threads.err;
    ASSERT_EQ(processes.code, 0) << processes.err;
    EXPECT_EQ(threads.json()["heldout_loss"], processes.json()["heldout_loss"]);
    const Finished one = s.lockstep("eval a --json"), four = s.in_processes(4, "eval a --json");
    ASSERT_EQ(one.code, 0) << one.err;
    ASSERT_EQ(four.code, 0) << four.err;
    EXPECT_EQ(one.json()["loss"], four.json()["loss"]);
    EXPECT_EQ(one.json()["tokens"], four.json()["tokens"]);
}

// Tokens and logits, drawn from prompts of which one stands on the first process's standard input.
TEST_F(CliProcesses, SampleAsThreadsDo) {
    ASSERT_EQ(s.lockstep("train r.toml" + prepared()).code, 0);
    s.write("prompt.txt", "line 7");
    const std::string one = "sample out --temperature 0.8 --top-k 40 --seed 5 --max-tokens 8 --prompt 'line '";
    const auto sample = [&](const std::string& layout, const std::string& logits) {
        return fmt::format("{} --prompt-file - --json --logits {}{} <prompt.txt", one, logits, layout);
    };
    const struct {
        const char *threads, *processes;
        std::vector<int> in;
    } layouts[] = {{" --parallelism.tensor_parallel_degree 2", nullptr, {2}},
                   {kFourRanks, nullptr, {2, 4}},
                   {" --parallelism.data_parallel_shard_degree 2", "", {2}}};  // left open: a rank a process
    for (const auto& layout : layouts) {
        const Finished threads = s.lockstep(sample(layout.threads, "threads.txt"));
        ASSERT_EQ(threads.code, 0) << threads.err;
        const nlohmann::json sequences = threads.json()["sequences"];
        ASSERT_EQ(sequences.size(), 2u);
        EXPECT_EQ(sequences[1]["prompt_tokens"], 6);
        EXPECT_EQ(count(s.read("threads.txt"), "\n"), sequences[0]["tokens"].size() + sequences[1]["tokens"].size());
        for (int processes : layout.in) {
            const Finished f =
                s.in_processes(processes, sample(layout.processes ? layout.processes : layout.threads, "parts.txt"));
            ASSERT_EQ(f.code, 0) << f.err;
            for (const char* field : {"sequences", "ranks", "context", "peak_bytes_planned"})
                EXPECT_EQ(f.json()[field], threads.json()[field]) << layout.threads << " " << field;
            EXPECT_EQ(s.read("parts.txt"), s.read("threads.txt")) << layout.threads;
        }
    }
    const Finished threads = s.lockstep(one), processes = s.in_processes(2, one + " --parallelism.tensor_parallel_degree 2");
    EXPECT_EQ(processes.code, 0) << processes.err;
    EXPECT_EQ(processes.out, threads.out);
    EXPECT_EQ(count(processes.err, "8 tokens, "), 1u) << processes.err;
}

TEST_F(CliProcesses, ALostProcessEndsSampling) {
    ASSERT_EQ(s.lockstep("train r.toml --job.dump_folder sampled").code, 0);
    const std::string arguments =
        "sample sampled --prompt-tokens 5,6 --training.seq_len 100000 --max-tokens 99000 --logits rows.txt "
        "--comm.train_timeout_seconds 2 --parallelism.tensor_parallel_degree 2";
    for (const char* signal : {"KILL", "STOP"}) {
        const Finished f =
            s.shell(fmt::format("rm -f rows.txt; {{ timeout 100 $MPIRUN -n 2 $LOCKSTEP {} >out.txt 2>err.txt & p=$!; "
                                "for i in $(seq 400); do [ -s rows.txt ] && break; sleep 0.05; done; "
                                "kill -{} $(pgrep -n -f \"^$LOCKSTEP sample sampled\"); wait $p; }}",
                                arguments, signal));
        EXPECT_EQ(f.out, "");
        EXPECT_NE(s.shell("pgrep -f \"^$LOCKSTEP sample sampled\" >out.txt").code, 0) << "left: " << s.read("out.txt");
        if (signal == std::string("KILL")) {
            EXPECT_EQ(f.code, 137) << f.err;
            continue;
        }
        EXPECT_EQ(f.code, 3) << f.err;
        EXPECT_EQ(count(f.err, "has not been heard of for 1.5 s: it was stopped, has died or is cut off"), 1u) << f.err;
        EXPECT_EQ(s.lockstep("report sampled").code, 0);
    }
}

TEST_F(CliProcesses, WatchAndTraceAllRanks) {
    const std::string watch = fmt::format(
        " --training.steps 3 --watch 'layer[0].forward.v' --watch 'layer[1].forward.y' --trace {{}}.json{}", kPipeline);
    const Finished threads = s.lockstep("train r.toml --job.dump_folder a" + fmt::format(fmt::runtime(watch), "a"));
    const Finished processes = s.in_processes(2, "train r.toml --job.dump_folder b" + fmt::format(fmt::runtime(watch), "b"));
    ASSERT_EQ(threads.code, 0) << threads.err;
    ASSERT_EQ(processes.code, 0) << processes.err;
    for (const char* file : {"layer[0].forward.v.step1.txt", "layer[1].forward.y.step3.txt"}) {
        EXPECT_FALSE(s.read(std::string("a/watch/") + file).empty()) << file;
        EXPECT_EQ(s.read(std::string("a/watch/") + file), s.read(std::string("b/watch/") + file)) << file;
    }
    const auto events = [&](const char* file) {
        std::map<int, int> of_rank;
        const nlohmann::json trace = nlohmann::json::parse(s.read(file));
        for (const nlohmann::json& e : trace["traceEvents"]) of_rank[e["pid"]] += e["ph"] == "X";
        return of_rank;
    };
    EXPECT_EQ(events("b.json").size(), 4u);
    EXPECT_EQ(events("a.json"), events("b.json"));
}

TEST_F(CliProcesses, OneSignalStopsAllWithACheckpoint) {
    s.write("signaled.toml", s.read("r.toml"));  // a name that no other test's processes have
    const Finished f = s.shell(
        "{ timeout 100 $MPIRUN -n 2 $LOCKSTEP train signaled.toml --training.steps 100000 --checkpoint.interval 100000 >out.txt "
        "2>err.txt & "
        "p=$!; until grep -q 'step  ' err.txt; do sleep 0.1; done; kill -USR1 $(pgrep -n -f \"^$LOCKSTEP train signaled.toml\"); "
        "wait "
        "$p; }");
    EXPECT_EQ(f.code, 4) << f.err;
    EXPECT_EQ(count(f.err, "stopped by SIGUSR1 after step "), 1u) << f.err;
    const size_t at = f.err.find("after step ") + 11;
    const int step = std::stoi(f.err.substr(at));
    EXPECT_TRUE(std::filesystem::exists(s.path(fmt::format("out/checkpoint/step-{:08}/manifest.json", step))));
    EXPECT_EQ(
        s.in_processes(2, fmt::format("train signaled.toml --training.steps {} --lr_scheduler.total_steps 100000", step + 2))
            .code,
        0);
}

TEST_F(CliProcesses, AKilledProcessEndsAllAndTheRunGoesOn) {
    s.write("killed.toml", s.read("r.toml"));
    const std::string arguments = "train killed.toml --training.steps 400 --checkpoint.interval 10 --checkpoint.keep_latest_k 3";
    ASSERT_EQ(s.lockstep(arguments + " --job.dump_folder whole --cluster.ranks 2").code, 0);
    const Finished killed =
        s.shell(fmt::format("{{ timeout 100 $MPIRUN -n 2 $LOCKSTEP {} >out.txt 2>err.txt & p=$!; until ls -d "
                            "out/checkpoint/step-*[0-9]; do sleep 0.05; "
                            "done >/dev/null 2>&1; kill -KILL $(pgrep -n -f \"^$LOCKSTEP train killed.toml\"); wait $p; }}",
                            arguments));
    EXPECT_EQ(killed.code, 137) << killed.err;
    const Finished again = s.in_processes(2, arguments);
    ASSERT_EQ(again.code, 0) << again.err;
    EXPECT_EQ(count(again.err, "resumed from out/checkpoint/step-"), 1u) << again.err;
    expect_same_files("whole", "out", 400);
}

// Stopped, not killed: nothing tells the launcher.
TEST_F(CliProcesses, AStoppedProcessIsNoticedAndReported) {
    s.write("halted.toml", s.read("r.toml"));
    const Finished f = s.shell(
        "{ timeout 100 $MPIRUN -n 4 $LOCKSTEP train halted.toml --training.steps 100000 --comm.train_timeout_seconds 2 >out.txt "
        "2>err.txt & "
        "p=$!; until grep -q 'step  ' err.txt; do sleep 0.1; done; kill -STOP $(pgrep -n -f \"^$LOCKSTEP train halted.toml\"); "
        "wait $p; }");
    EXPECT_EQ(f.code, 3) << f.err;
    const size_t at = f.err.find("has not been heard of for 1.5 s: it was stopped, has died or is cut off");
    ASSERT_NE(at, std::string::npos) << f.err;
    const char lost = f.err[f.err.rfind("(rank ", at) + 6];
    EXPECT_EQ(count(f.err, "(rank "), lost == '0' ? 3u : 1u) << f.err;
    EXPECT_NE(s.shell("pgrep -f \"^$LOCKSTEP train halted.toml\" >out.txt").code, 0) << "left: " << s.read("out.txt");
    const Finished report = s.lockstep("report out");
    EXPECT_EQ(report.code, 0) << report.err;
    EXPECT_NE(report.out.find(fmt::format("ranks without a record: {} (stopped, dead or cut off)", lost)), std::string::npos)
        << report.out;
    const nlohmann::json j = s.lockstep("report out/comm_traces --json").json();
    EXPECT_EQ(j["without_record"], std::vector<int>{lost - '0'});
    const Finished none = s.lockstep("report data");
    EXPECT_EQ(none.code, 1);
    EXPECT_NE(none.err.find("data: holds neither a run"), std::string::npos) << none.err;
    EXPECT_NE(none.err.find("[report.no_records]"), std::string::npos) << none.err;
    EXPECT_NE(
        s.lockstep("train r.toml --comm.train_timeout_seconds -1").err.find("must be from 0 to 1000000000 [recipe.out_of_range]"),
        std::string::npos);
}

// A rank is killed once; the job goes on from its checkpoint, and ends with the bits of one that was left alone.
TEST_F(CliProcesses, LaunchStartsAgainFromTheLastCheckpoint) {
    s.write("again.toml", s.read("r.toml"));
    const std::string keys = " --training.steps 300 --checkpoint.interval 10 --checkpoint.keep_latest_k 3";
    ASSERT_EQ(s.lockstep("train again.toml --job.dump_folder whole --cluster.ranks 2" + keys).code, 0);
    const Finished f = s.shell(
        fmt::format("{{ timeout 100 $LOCKSTEP launch --json --processes 2 -- train again.toml{} >out.txt 2>err.txt & p=$!; "
                    "for i in $(seq 400); do ls -d out/checkpoint/step-*[0-9] && break; sleep 0.05; done >/dev/null 2>&1; kill "
                    "-KILL $(pgrep -n -f "
                    "\"^$LOCKSTEP train again.toml\"); "
                    "wait $p; }}",
                    keys));
    ASSERT_EQ(f.code, 0) << f.err;
    const nlohmann::json attempts = f.json()["attempts"];
    ASSERT_EQ(attempts.size(), 2u) << f.out;
    EXPECT_EQ(attempts[0]["code"], 137);
    EXPECT_EQ(attempts[1]["from_step"], attempts[0]["to_step"]);
    EXPECT_EQ(attempts[1]["to_step"], 300);
    expect_same_files("whole", "out", 300);
}

// Host b goes with the rank that is killed: one replica is left, with the batch of two.
TEST_F(CliProcesses, LaunchGoesOnOnTheHostsThatAreLeft) {
    s.write("fewer.toml", s.read("r.toml"));
    s.write("agent.sh", "#!/bin/sh\n[ $1 != b ] || [ ! -e gone ]\n");
    s.write("run.sh", "np=$2; shift 4; exec $MPIRUN -n $np \"$@\"\n");  // without --host: all are here
    const std::string keys = " --training.steps 200 --checkpoint.interval 10 --checkpoint.keep_latest_k 3";
    ASSERT_EQ(s.lockstep("train fewer.toml --json --job.dump_folder whole --cluster.ranks 2" + keys).code, 0);
    const double whole =
        s.lockstep("train fewer.toml --json --job.dump_folder again --cluster.ranks 2" + keys).json()["final_loss"];
    const Finished f =
        s.shell(fmt::format("export MPIRUN; chmod +x agent.sh; {{ timeout 100 $LOCKSTEP launch --json --hosts a:1,b:1 --agent "
                            "./agent.sh --mpirun 'sh run.sh' -- train "
                            "fewer.toml{} >out.txt 2>err.txt & p=$!; for i in $(seq 400); do ls -d out/checkpoint/step-*[0-9] && "
                            "break; sleep 0.05; done "
                            ">/dev/null 2>&1; touch gone; "
                            "kill -KILL $(pgrep -n -f \"^$LOCKSTEP train fewer.toml\"); wait $p; }}",
                            keys));
    ASSERT_EQ(f.code, 0) << f.err;
    const nlohmann::json attempts = f.json()["attempts"];
    ASSERT_EQ(attempts.size(), 2u) << f.out;
    EXPECT_EQ(attempts[0]["hosts"], (std::vector<std::string>{"a", "b"}));
    EXPECT_EQ(attempts[1]["hosts"], (std::vector<std::string>{"a"}));
    EXPECT_NE(f.err.find("1 of 2 data-parallel ranks, with the same global batch of 4"), std::string::npos) << f.err;
    const nlohmann::json last = s.objects("out/metrics.jsonl").back();
    EXPECT_EQ(last["step"], 200);
    EXPECT_NEAR(last["loss_metrics/global_avg_loss"].get<double>(), whole, 1e-3);
}

TEST_F(CliProcesses, LaunchGivesUpAndSaysWhatItTried) {
    s.write("fail.sh", "exit 9\n");
    const Finished f = s.lockstep("launch --json --max-restarts 2 --mpirun 'sh fail.sh' -- train r.toml");
    EXPECT_EQ(f.code, 3) << f.err;
    EXPECT_EQ(f.json()["attempts"].size(), 3u);
    EXPECT_NE(f.err.find("launch: given up after 3 attempts at step 0"), std::string::npos) << f.err;
    const Finished refused = s.lockstep("launch --processes 2 -- train r.toml --training.seq_len 0");
    EXPECT_EQ(refused.code, 1) << refused.err;
    EXPECT_NE(s.lockstep("launch").err.find("write the command after --"), std::string::npos);
    EXPECT_NE(s.lockstep("launch").err.find("[launch.command]"), std::string::npos);
    EXPECT_NE(s.lockstep("launch --hosts a:x -- train r.toml").err.find("'a:x' must be a name, or name:processes [launch.hosts]"),
              std::string::npos);
}

TEST_F(CliProcesses, ADegreeLeftOpenIsThatOfTheProcesses) {
    const Finished f = s.in_processes(2, "train r.toml");
    ASSERT_EQ(f.code, 0) << f.err;
    EXPECT_EQ(count(f.err, "2 ranks (dp_replicate 1 x dp_shard 2 x tp 1), "), 1u) << f.err;
    EXPECT_EQ(count(f.err, " in 2 processes on 1 host\n"), 1u) << f.err;
}

TEST_F(CliProcesses, SayWhatIsWrongOnce) {
    const auto refused = [&](const Finished& f, const std::string& message, const std::string& id) {
        EXPECT_EQ(f.code, 1) << f.err;
        EXPECT_EQ(count(f.err, message), 1u) << f.err;
        EXPECT_EQ(count(f.err, "[" + id + "]"), 1u) << f.err;
    };
    refused(s.in_processes(3, fmt::format("train r.toml{}", kFourRanks)),
            "the recipe has 4 ranks, which 3 processes cannot share evenly", "job.processes");
    refused(s.in_processes(2, "train missing.toml"), "recipe missing.toml: cannot be read", "recipe.unreadable");
    refused(s.in_processes(1, fmt::format("train r.toml{0} : -n 1 $LOCKSTEP train r.toml{0} --training.seq_len 18", kFourRanks)),
            "training.seq_len is 16 on rank 0, but 18 on rank 2: all processes of a job must have the same recipe",
            "job.ranks_disagree");
    std::filesystem::create_directories(s.path("elsewhere"));
    refused(
        s.shell(fmt::format("timeout 100 $MPIRUN -n 1 $LOCKSTEP train r.toml{0} : -wdir $PWD/elsewhere -n 1 $LOCKSTEP train "
                            "../r.toml{0} >out.txt 2>err.txt",
                            kFourRanks)),
        "and this one does not see it: the folder of the checkpoints must be on a file system that all hosts of the job share",
        "checkpoint.not_shared");
    s.write("file", "");
    refused(s.in_processes(2, "train r.toml --job.dump_folder file/x"), "file/x cannot be made", "train.dump_folder");
    const Finished json = s.in_processes(2, "train missing.toml --json");
    EXPECT_EQ(json.json()["error"]["id"], "recipe.unreadable") << json.out;
    refused(s.shell("SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2 timeout 100 $LOCKSTEP train r.toml >out.txt 2>err.txt"),
            "the launcher started 2 processes, but MPI sees 1: use srun --mpi=pmix", "job.launcher");
    ASSERT_EQ(s.lockstep("train r.toml --training.steps 3").code, 0);
    const std::string sample = "sample out --parallelism.tensor_parallel_degree 2 ";
    refused(s.in_processes(3, sample + "--prompt-tokens 5 --parallelism.data_parallel_shard_degree 1"),
            "the recipe has 2 ranks, which 3 processes cannot share evenly", "job.processes");
    refused(s.in_processes(2, "sample elsewhere --prompt-tokens 5"), "elsewhere holds no complete checkpoint",
            "checkpoint.not_found");
    refused(s.in_processes(2, sample + "--prompt-tokens 5 --logits elsewhere"), "--logits elsewhere: cannot be written",
            "sample.logits");
    EXPECT_EQ(s.in_processes(2, sample + "--json --prompt-tokens 61").json()["error"]["id"], "sample.prompt_tokens");
    std::filesystem::resize_file(s.path("out/checkpoint/step-00000003/model.safetensors"), 1000);
    refused(s.in_processes(2, sample + "--prompt-tokens 5"), "model.safetensors", "checkpoint.damaged");
    // Commands of one process: the first one does them.
    const Finished check = s.in_processes(3, "check r.toml");
    EXPECT_EQ(check.code, 0) << check.err;
    EXPECT_EQ(count(check.out, "checked: order of collectives (no deadlock)"), 1u) << check.out;
}

}  // namespace
}  // namespace lockstep::testing
