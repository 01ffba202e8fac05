// A request to stop: whatever signal it is, and whichever process gets it, a run ends with a checkpoint, exit code 4 and a line
// that says so, from `train` and from `launch`.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "checkpoint/folder.h"
#include "comm/mpi/session.h"
#include "tests/cli/command.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;

const char* kNoCheckpointBeforeTheEnd = R"([checkpoint]
enable = true
interval = 100000000
)";

class CliSignals : public ::testing::Test {
protected:
    void write(const std::string& name) { s.write(name, training_recipe(100000000, kNoCheckpointBeforeTheEnd)); }
    // Sends a signal to the command itself, once it has taken steps. `more`: what to do after it.
    Finished stop(const std::string& command, const std::string& signal, const std::string& more = "") const {
        return s.shell(
            fmt::format("{{ rm -f err.txt; timeout 120 {} >out.txt 2>err.txt & until grep -q 'step  ' err.txt 2>/dev/null; do "
                        "sleep 0.05; done; p=$(pgrep -P $! | head -1); kill -{} $p; {} wait $!; }}",
                        command, signal, more));
    }
    void expect_stopped(const Finished& f, const std::string& signal) const {
        EXPECT_EQ(f.code, 4) << signal << "\n" << f.err;
        EXPECT_NE(f.err.find("stopped by " + signal + " after step "), std::string::npos) << f.err;
        const size_t at = f.err.find("checkpoint written: ");
        ASSERT_NE(at, std::string::npos) << f.err;
        EXPECT_NE(f.err.find("; go on with the same command"), std::string::npos) << f.err;
        const std::string folder = f.err.substr(at + 20, f.err.find(';', at) - at - 20);
        EXPECT_TRUE(fs::exists(s.path(folder + "/manifest.json"))) << folder;
    }

    Scratch s;
};

TEST_F(CliSignals, EachSignalToTrain) {
    write("alone.toml");
    for (const char* signal : {"TERM", "USR1", "HUP", "INT"}) {
        const Finished f = stop("$LOCKSTEP train alone.toml", signal);
        expect_stopped(f, std::string("SIG") + signal);
        EXPECT_NE(f.err.find(fmt::format("SIG{}: the run stops after this step", signal)), std::string::npos) << f.err;
    }
}

TEST_F(CliSignals, UnderNohupAHangUpIsIgnored) {
    write("nohup.toml");
    const Finished f = stop("nohup $LOCKSTEP train nohup.toml", "HUP", "sleep 0.3; kill -TERM $p;");
    expect_stopped(f, "SIGTERM");
}

// The second one counts a second later, so that a launcher may hand one on twice.
TEST_F(CliSignals, CtrlCAgainEndsAtOnce) {
    s.write("long.toml", training_recipe(100000000, kNoCheckpointBeforeTheEnd) + "[debug]\nseed = 1\n");
    const Finished twice = stop("$LOCKSTEP train long.toml", "INT", "kill -INT $p;");
    expect_stopped(twice, "SIGINT");
    fs::remove_all(s.path("out"));
    // A step that takes long: links that are slow.
    const Finished f = stop(
        "$LOCKSTEP train long.toml --parallelism.data_parallel_shard_degree 2 --runtime.local_link_latency_s 0.3 "
        "--comm.train_timeout_seconds 0",
        "INT", "sleep 1.2; kill -INT $p;");
    EXPECT_EQ(f.code, 3) << f.err;
    EXPECT_NE(f.err.find("Ctrl-C again: ended at once, without a checkpoint"), std::string::npos) << f.err;
    EXPECT_TRUE(checkpoint::complete_steps(s.path("out/checkpoint")).empty()) << f.err;
}

TEST_F(CliSignals, AReaderThatGoesAwayEndsTheRunWithACheckpoint) {
    write("piped.toml");
    const Finished f = s.shell("{ timeout 100 $LOCKSTEP train piped.toml 2>&1; echo $? >code.txt; } | head -3 >out.txt");
    EXPECT_EQ(f.out.empty(), false);
    EXPECT_EQ(s.read("code.txt"), "4\n");
    EXPECT_FALSE(checkpoint::complete_steps(s.path("out/checkpoint")).empty());
}

TEST_F(CliSignals, EachSignalToLaunch) {
    if (!comm::mpi::is_built()) GTEST_SKIP() << "built without MPI";
    write("launched.toml");
    for (const char* signal : {"TERM", "USR1", "HUP", "INT"}) {
        const Finished f = stop("$LOCKSTEP launch --json --processes 2 -- train launched.toml", signal);
        EXPECT_EQ(f.code, 4) << signal << "\n" << f.err;
        EXPECT_NE(f.err.find(fmt::format("launch: SIG{}: all ranks are asked to stop after their step", signal)),
                  std::string::npos)
            << f.err;
        EXPECT_NE(f.err.find("stopped by SIGUSR1 after step "), std::string::npos) << f.err;
        EXPECT_NE(f.err.find("launch: checkpoint written: out/checkpoint/step-"), std::string::npos) << f.err;
        const nlohmann::json attempts = f.json()["attempts"];
        ASSERT_EQ(attempts.size(), 1u) << f.out;
        EXPECT_GT(attempts[0]["to_step"], attempts[0]["from_step"]);
        EXPECT_NE(s.shell("pgrep -f \"^$LOCKSTEP train launched.toml\" >left.txt").code, 0) << s.read("left.txt");
    }
}

// Over hosts the agent carries the request; it runs what it is told, as ssh does.
TEST_F(CliSignals, LaunchReachesRanksOverItsAgent) {
    if (!comm::mpi::is_built()) GTEST_SKIP() << "built without MPI";
    write("hosts.toml");
    s.write("agent.sh", "#!/bin/sh\necho $1 >>asked; shift; exec sh -c \"$*\"\n");
    s.write("run.sh", "np=$2; shift 4; exec $MPIRUN -n $np \"$@\"\n");  // without --host: all are here
    ASSERT_EQ(s.shell("chmod +x agent.sh").code, 0);
    const Finished f = stop(
        "env MPIRUN=\"$MPIRUN\" $LOCKSTEP launch --json --hosts a:1,b:1 --agent ./agent.sh --mpirun 'sh run.sh' -- train "
        "hosts.toml",
        "TERM");
    EXPECT_EQ(f.code, 4) << f.err;
    EXPECT_NE(s.read("asked").find("b\n"), std::string::npos);
}

// Ranks that do not stop are ended after the grace period, or after a second Ctrl-C.
TEST_F(CliSignals, LaunchEndsWhatDoesNotStop) {
    write("deaf.toml");
    s.write("deaf.sh", "trap '' USR1 TERM; echo 'step  ' >&2; shift 2; exec $1 $2 sh -c \"trap '' USR1 TERM; sleep 4714\"\n");
    for (const auto& [flags, signal, more, text] :
         {std::tuple{"--grace 1", "TERM", "",
                     "launch: 1 s after SIGTERM something still runs: it is ended, without a checkpoint"},
          std::tuple{"", "INT", "sleep 1.2; kill -INT $p;",
                     "launch: Ctrl-C again: what still runs is ended, without a checkpoint"}}) {
        const Finished f =
            stop(fmt::format("$LOCKSTEP launch --processes 1 {} --mpirun 'sh deaf.sh' -- train deaf.toml", flags), signal, more);
        EXPECT_EQ(f.code, 3) << f.err;
        EXPECT_NE(f.err.find(text), std::string::npos) << f.err;
        EXPECT_NE(f.err.find("without a checkpoint of its last step; there is none"), std::string::npos) << f.err;
        EXPECT_NE(s.shell("pgrep -f '[s]leep 4714'").code, 0);
    }
}

}  // namespace
}  // namespace lockstep::testing
