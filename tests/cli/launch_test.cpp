// A supervisor whose launcher does not end by itself, fails on its own account, or leaves processes behind.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "comm/mpi/session.h"
#include "tests/cli/command.h"

namespace lockstep::testing {
namespace {

const char* kThreeCheckpoints = R"([checkpoint]
enable = true
interval = 5
keep_latest_k = 3
)";

class CliLaunch : public ::testing::Test {
protected:
    Scratch s;
};

// The launcher of the first attempt waits for ever, as mpirun does for a host that is cut off.
TEST_F(CliLaunch, ALauncherThatWaitsForEverIsKilledOnceItsRanksHaveEnded) {
    if (!comm::mpi::is_built()) GTEST_SKIP() << "built without MPI";
    s.write("hangs.toml", training_recipe(10000, kThreeCheckpoints));
    s.write("run.sh", "$MPIRUN \"$@\"; code=$?; [ -e second ] || { touch second; sleep 300; }; exit $code\n");
    const Finished f = s.shell(
        "export MPIRUN; { timeout 100 $LOCKSTEP launch --json --processes 2 --mpirun 'sh run.sh' -- train hangs.toml "
        "--training.steps 40 --comm.train_timeout_seconds 2 >out.txt 2>err.txt & p=$!; "
        "for i in $(seq 400); do ls -d out/checkpoint/step-*[0-9] && break; sleep 0.02; done >/dev/null 2>&1; "
        "kill -STOP $(pgrep -n -f \"^$LOCKSTEP train hangs.toml\"); wait $p; }");
    ASSERT_EQ(f.code, 0) << f.err;
    const nlohmann::json j = f.json();
    ASSERT_EQ(j["attempts"].size(), 2u) << f.out;
    EXPECT_EQ(j["attempts"][0]["code"], 137);
    EXPECT_LT(j["attempts"][0]["time_s"], 20);
    EXPECT_EQ(j["attempts"][1]["from_step"], j["attempts"][0]["to_step"]);
    EXPECT_NE(f.err.find("launch: mpirun does not end: it is killed"), std::string::npos) << f.err;
}

TEST_F(CliLaunch, WhatAnAttemptLeavesIsEnded) {
    s.write("r.toml", training_recipe(10000, kThreeCheckpoints));
    // env LOCKSTEP_JOB=... sleep: a process of this job that nobody waits for.
    s.write("leaves.sh", "setsid $3 $4 sleep 4713 >/dev/null 2>&1 &\nsleep 0.3; pgrep -f 'sleep 4713' >>seen; exit 9\n");
    const Finished f = s.lockstep("launch --json --max-restarts 1 --mpirun 'sh leaves.sh' -- train r.toml");
    EXPECT_EQ(f.code, 3) << f.err;
    EXPECT_FALSE(s.read("seen").empty());
    EXPECT_NE(s.shell("pgrep -f '[s]leep 4713'").code, 0);
}

TEST_F(CliLaunch, OneIsARefusalUnlessAHostHasGone) {
    s.write("r.toml", training_recipe(10000, kThreeCheckpoints));
    s.write("one.sh", "touch gone; exit 1\n");
    s.write("agent.sh", "#!/bin/sh\n[ $1 != b ] || [ ! -e gone ]\n");
    const Finished refused = s.lockstep("launch --json --mpirun 'sh one.sh' -- train r.toml");
    EXPECT_EQ(refused.code, 1) << refused.err;
    EXPECT_EQ(refused.json()["attempts"].size(), 1u);
    const Finished lost = s.shell(
        "rm gone; chmod +x agent.sh; timeout 100 $LOCKSTEP launch --json --hosts a:1,b:1 --agent ./agent.sh --mpirun 'sh one.sh' "
        "-- train r.toml >out.txt 2>err.txt");
    EXPECT_EQ(lost.code, 1) << lost.err;
    ASSERT_EQ(lost.json()["attempts"].size(), 2u) << lost.out;
    EXPECT_EQ(lost.json()["attempts"][1]["hosts"], std::vector<std::string>{"a"});
}

}  // namespace
}  // namespace lockstep::testing
