// Islands as a user meets them: training, a stop and a resumed run of the same bits, other numbers of islands, what reads the
// checkpoint afterwards, and what plan and check say.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "comm/mpi/session.h"
#include "tests/cli/command.h"
#include "tests/paths.h"

namespace lockstep::testing {
namespace {

const char* kIslands = R"([fault_tolerance]
enable = true
semi_sync_method = "diloco"
group_size = 2
sync_steps = 4
num_fragments = 2
[checkpoint]
enable = true
interval = 3
last_save_model_only = false
)";

class CliIslands : public ::testing::Test {
protected:
    void SetUp() override { s.write("r.toml", training_recipe(8, kIslands)); }

    // What `train --json` says.
    nlohmann::json train(const std::string& flags) {
        const Finished f = s.lockstep("train r.toml --json " + flags);
        EXPECT_EQ(f.code, 0) << flags << f.err;
        return f.code == 0 ? f.json() : nlohmann::json();
    }
    std::string weights(const std::string& folder, int step) {
        return s.read(fmt::format("{}/checkpoint/step-{:08}/model.safetensors", folder, step));
    }

    Scratch s;
};

TEST_F(CliIslands, AStopChangesNoBit) {
    for (const std::string more : {"", " --checkpoint.async_mode async --parallelism.data_parallel_shard_degree 2",
                                   " --training.mixed_precision_param float16 --fault_tolerance.should_quantize true"}) {
        const nlohmann::json straight = train("--job.dump_folder a" + more);
        // Between two meetings, where islands differ, and the optimizer of each goes on.
        train("--job.dump_folder b --training.steps 3 --lr_scheduler.total_steps 8" + more);
        const nlohmann::json resumed = train("--job.dump_folder b" + more);
        EXPECT_EQ(straight["final_loss"], resumed["final_loss"]) << more;
        EXPECT_FALSE(weights("a", 8).empty());
        EXPECT_TRUE(weights("a", 8) == weights("b", 8)) << more;
        ASSERT_EQ(s.shell("rm -r a b").code, 0);
    }
}

// The others take the first one's state; without islands there is its model alone; and a plain run may go on as islands.
TEST_F(CliIslands, MayBecomeMoreOrNone) {
    train("--job.dump_folder a --training.steps 4 --training.global_batch_size 12");
    ASSERT_EQ(s.shell("cp -r a b; cp -r a c").code, 0);
    const nlohmann::json more = train("--job.dump_folder a --fault_tolerance.group_size 3 --training.global_batch_size 12");
    const nlohmann::json none = train("--job.dump_folder b --fault_tolerance.enable false --training.global_batch_size 12");
    const nlohmann::json same = train("--job.dump_folder c --training.global_batch_size 12");
    for (const nlohmann::json& run : {more, none}) EXPECT_NEAR(run["final_loss"], same["final_loss"], 0.1);
    train("--job.dump_folder d --fault_tolerance.enable false --training.steps 4");
    train("--job.dump_folder d");
}

TEST_F(CliIslands, AModelOfThemIsUsedByOne) {
    std::string text;
    for (int i = 0; i < 300; ++i) text += fmt::format("word {} of a text\n", i * 7919 % 1000);
    s.prepare({text});
    s.write("p.toml", prepared_recipe("local_batch_size = 2\nglobal_batch_size = 4\nseq_len = 16\nsteps = 4\n") + kIslands);
    ASSERT_EQ(s.lockstep("train p.toml --job.dump_folder a --validation.enable true --validation.freq 2").code, 0);
    const Finished eval = s.lockstep("eval a --json");
    ASSERT_EQ(eval.code, 0) << eval.err;
    EXPECT_EQ(eval.json()["ranks"], 1);
    EXPECT_EQ(s.lockstep("sample a --prompt word --max-tokens 4").code, 0);
    EXPECT_EQ(s.lockstep("convert a hf").code, 0);
    EXPECT_FALSE(has(s.read("hf/model.safetensors"), "island"));
}

TEST_F(CliIslands, InProcesses) {
    const nlohmann::json here = train("--job.dump_folder a --parallelism.data_parallel_shard_degree 2");
    const Finished f = s.in_processes(4, "train r.toml --json --job.dump_folder b --parallelism.data_parallel_shard_degree 2");
    ASSERT_EQ(f.code, 0) << f.err;
    EXPECT_EQ(f.json()["final_loss"], here["final_loss"]);
    EXPECT_EQ(weights("a", 8), weights("b", 8));
}

// Under `launch` each island is a job, and the bits are those of one job.
TEST_F(CliIslands, AsJobsHaveTheBitsOfOneJob) {
    if (!comm::mpi::is_built()) GTEST_SKIP() << "built without MPI";
    for (const std::string more : {"", " --parallelism.data_parallel_shard_degree 2",
                                   " --parallelism.tensor_parallel_degree 2 --training.mixed_precision_param bfloat16"}) {
        const std::string flags = " --runtime.threads_per_rank 1" + more;
        train("--job.dump_folder a" + flags);
        const Finished f =
            s.shell("timeout 100 $LOCKSTEP launch --mpirun \"$MPIRUN\" --json -- train r.toml --job.dump_folder b" + flags +
                    " >out.txt 2>err.txt");
        ASSERT_EQ(f.code, 0) << f.err;
        EXPECT_FALSE(weights("a", 8).empty());
        EXPECT_TRUE(weights("a", 8) == weights("b", 8)) << more;
        EXPECT_EQ(weights("b/island.1", 8).size(), weights("b", 8).size());
        EXPECT_NE(weights("b/island.1", 8), weights("b", 8)) << "the first fragment met two steps ago";
        EXPECT_FALSE(has(s.shell("ls b >out.txt").out, "islands-")) << "the secret is gone";
        ASSERT_EQ(s.shell("rm -r a b").code, 0);
    }
}

// A killed island costs the others nothing, and comes back in with the state of one of them.
TEST_F(CliIslands, AsJobsOneMayBeLost) {
    if (!comm::mpi::is_built()) GTEST_SKIP() << "built without MPI";
    s.write("long.toml", training_recipe(6000, kIslands));
    const Finished f = s.shell(
        "{ timeout 600 $LOCKSTEP launch --mpirun \"$MPIRUN\" --json -- train long.toml --job.dump_folder b "
        "--fault_tolerance.num_fragments 1 --fault_tolerance.sync_steps 100 --checkpoint.interval 1000 "
        ">out.txt 2>err.txt & p=$!; "
        "for i in $(seq 800); do ls -d b/island.1/checkpoint/step-*[0-9] && break; sleep 0.02; done >/dev/null 2>&1; "
        "kill -KILL $(pgrep -n -f \"^$LOCKSTEP train long.toml.*island.1\"); wait $p; }");
    ASSERT_EQ(f.code, 0) << f.err;
    std::map<int64_t, int> attempts;
    const nlohmann::json said = f.json();
    for (const nlohmann::json& a : said["attempts"]) ++attempts[a["island"].get<int64_t>()];
    EXPECT_EQ(attempts, (std::map<int64_t, int>{{0, 1}, {1, 2}})) << f.out << f.err;
    EXPECT_TRUE(has(f.err, "launch: island 1 is left out of meetings: its job has ended")) << f.err;
    EXPECT_TRUE(has(f.err, "launch: island 1 comes in at step ")) << f.err;
    EXPECT_FALSE(weights("b", 6000).empty());
    EXPECT_EQ(weights("b", 6000), weights("b/island.1", 6000)) << "they met at the last step";
    // One of them is a model as any other.
    EXPECT_EQ(s.lockstep("convert b hf").code, 0);
    EXPECT_EQ(s.lockstep("convert b/island.1 hf1").code, 0);
}

// Checkpoints of different steps: those behind take the state of the furthest.
TEST_F(CliIslands, AsJobsGoOn) {
    if (!comm::mpi::is_built()) GTEST_SKIP() << "built without MPI";
    const std::string launch =
        "timeout 100 $LOCKSTEP launch --mpirun \"$MPIRUN\" --json -- train r.toml --job.dump_folder b "
        "--lr_scheduler.total_steps 8 ";
    ASSERT_EQ(s.shell(launch + "--training.steps 4 >out.txt 2>err.txt").code, 0);
    ASSERT_EQ(s.shell("rm -r b/island.1/checkpoint/step-00000004").code, 0);
    const Finished f = s.shell(launch + ">out.txt 2>err.txt");
    ASSERT_EQ(f.code, 0) << f.err;
    EXPECT_TRUE(has(f.err, "launch: island 1 comes in at step 4 with the state of island 0")) << f.err;
    EXPECT_FALSE(weights("b/island.1", 8).empty());
    // And as one job from there.
    train("--job.dump_folder b --training.steps 12");
}

TEST_F(CliIslands, ArePlannedWithTheirMeetings) {
    const std::string plan = "plan r.toml --json --cluster " + std::string(LOCKSTEP_SOURCE_DIR) + "/clusters/h100.toml ";
    const nlohmann::json often = s.lockstep(plan + "--fault_tolerance.sync_steps 2").json();
    const nlohmann::json seldom = s.lockstep(plan + "--fault_tolerance.sync_steps 200").json();
    EXPECT_GT(often["meeting_s"], 0);
    EXPECT_NEAR(often["step_time_s"].get<double>() - seldom["step_time_s"].get<double>(),
                often["meeting_s"].get<double>() * (1.0 / 2 - 1.0 / 200), 1e-9);
    const auto sent = [&](const char* flags) {
        const nlohmann::json checked = s.lockstep(std::string("check r.toml --json ") + flags).json();
        double bytes = 0;
        for (const nlohmann::json& group : checked["groups"]) {
            for (const auto& [kind, of_kind] : group["bytes_sent_by_a_rank"].items())
                bytes += group["along"] == "island" ? of_kind.get<double>() : 0;
        }
        return bytes / checked["stages"][0]["bytes"]["weights"].get<double>();
    };
    EXPECT_EQ(sent(""), 1.0 / 4) << "the weights once in four steps, to one other island";
    EXPECT_EQ(sent("--fault_tolerance.sync_steps 40"), 1.0 / 40);
    EXPECT_LT(sent("--fault_tolerance.should_quantize true --model.dim 256"), 0.27 / 4);
}

}  // namespace
}  // namespace lockstep::testing
