// `lockstep checkpoints`: what a run has, what of it is whole, and what may go.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/output_file.h"
#include "tests/cli/command.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;

class CliCheckpoints : public ::testing::Test {
protected:
    void SetUp() override {
        s.write("r.toml", tiny_recipe(R"([training]
dataset = "synthetic"
local_batch_size = 1
seq_len = 16
steps = 8
[checkpoint]
enable = true
interval = 2
last_save_model_only = true
)"));
        ASSERT_EQ(s.lockstep("train r.toml").code, 0);
    }
    nlohmann::json list(const std::string& arguments) const {
        const Finished f = s.lockstep("checkpoints out --json " + arguments);
        EXPECT_EQ(f.code, 0) << f.err;
        return f.json()["checkpoints"];
    }
    std::vector<int64_t> steps() const {
        std::vector<int64_t> out;
        for (const nlohmann::json& c : list("")) out.push_back(c["step"]);
        return out;
    }
    void flip_byte(int step) const {
        const std::string file = fmt::format("out/checkpoint/step-{:08}/model.safetensors", step);
        std::fstream f(s.path(file), std::ios::in | std::ios::out | std::ios::binary);
        f.seekp(3000);
        f.put('\x55');
    }

    Scratch s;
};

TEST_F(CliCheckpoints, AreListedWithStepDateSizeAndState) {
    const nlohmann::json all = list("");
    ASSERT_EQ(all.size(), 4u);
    EXPECT_EQ(all[0]["step"], 2);
    EXPECT_EQ(all[3]["folder"], "out/checkpoint/step-00000008");
    EXPECT_TRUE(all[0]["whole"]);
    EXPECT_FALSE(all[0]["model_only"]);
    EXPECT_TRUE(all[3]["model_only"]);
    EXPECT_GT(all[0]["bytes"].get<int64_t>(), all[3]["bytes"].get<int64_t>());
    EXPECT_EQ(all[0]["written"].get<std::string>().size(), 20u) << all[0]["written"];
    const Finished text = s.lockstep("checkpoints out/checkpoint");
    EXPECT_EQ(text.code, 0) << text.err;
    EXPECT_NE(text.out.find("whole, model only: training cannot go on from it"), std::string::npos) << text.out;
    EXPECT_NE(text.out.find("--verify reads every byte"), std::string::npos) << text.out;
    const Finished none = s.lockstep("checkpoints nowhere");
    EXPECT_EQ(none.code, 1);
    EXPECT_NE(none.err.find("nowhere holds no checkpoints"), std::string::npos) << none.err;
}

TEST_F(CliCheckpoints, VerifyReadsEveryByte) {
    EXPECT_EQ(s.lockstep("checkpoints out --verify").code, 0);
    flip_byte(4);
    fs::resize_file(s.path("out/checkpoint/step-00000006/model.safetensors"), 1000);
    EXPECT_TRUE(list("")[1]["whole"]) << "sizes alone do not show it";
    EXPECT_FALSE(list("")[2]["whole"]);
    const Finished f = s.lockstep("checkpoints out --verify");
    EXPECT_EQ(f.code, 1) << f.err;
    EXPECT_NE(f.out.find("damaged: out/checkpoint/step-00000004/model.safetensors: the bytes 0 to "), std::string::npos) << f.out;
    EXPECT_NE(f.out.find("step-00000006/model.safetensors has 1000 bytes, but "), std::string::npos) << f.out;
}

TEST_F(CliCheckpoints, PruneKeepsTheLatestWholeOnesAndOneToGoOnFrom) {
    const nlohmann::json would = list("--prune 1 --dry-run");
    EXPECT_TRUE(would[0]["removed"] && would[1]["removed"]);
    EXPECT_FALSE(would[2]["removed"] || would[3]["removed"]);
    EXPECT_EQ(steps(), (std::vector<int64_t>{2, 4, 6, 8}));
    flip_byte(6);  // then 4 is the latest one that training can go on from
    const Finished f = s.lockstep("checkpoints out --prune 1");
    EXPECT_EQ(f.code, 0) << f.err;
    EXPECT_NE(f.out.find("removed; damaged: "), std::string::npos) << f.out;
    EXPECT_EQ(steps(), (std::vector<int64_t>{4, 8}));
    flip_byte(4);
    flip_byte(8);
    const Finished none = s.lockstep("checkpoints out --prune 1");
    EXPECT_EQ(none.code, 1);
    EXPECT_NE(none.err.find("no checkpoint here is whole, so none is removed [checkpoints.none_whole]"), std::string::npos)
        << none.err;
    EXPECT_EQ(steps(), (std::vector<int64_t>{4, 8}));
    EXPECT_EQ(s.lockstep("checkpoints out --prune 0").code, 2);
    EXPECT_EQ(s.lockstep("checkpoints out --dry-run").code, 2);
}

TEST_F(CliCheckpoints, OfARunningJobNoneIsRemoved) {
    const FolderLock held(s.path("out/checkpoint"));
    EXPECT_EQ(steps().size(), 4u);
    const Finished f = s.lockstep("checkpoints out --prune 1");
    EXPECT_EQ(f.code, 1);
    EXPECT_NE(f.err.find("[folder.in_use]"), std::string::npos) << f.err;
    EXPECT_EQ(steps().size(), 4u);
}

TEST(CliOutput, ThatIsLostIsAFailure) {
    Scratch s;
    s.write("r.toml", tiny_recipe("[training]\ndataset = \"synthetic\"\nlocal_batch_size = 1\nseq_len = 16\nsteps = 2\n"));
    for (const char* command : {"check r.toml", "recipe --json", "train r.toml --json", "--help", "check missing.toml --json"}) {
        const Finished f = s.shell(fmt::format("$LOCKSTEP {} >/dev/full 2>err.txt", command));
        EXPECT_TRUE(f.code == 3 || (f.code == 1 && command == std::string("check missing.toml --json"))) << command << f.code;
        EXPECT_NE(f.err.find("standard output cannot be written"), std::string::npos) << command << "\n" << f.err;
    }
    EXPECT_NE(s.shell("$LOCKSTEP check r.toml >/dev/full 2>err.txt").err.find("cannot be written: No space left on device"),
              std::string::npos);
    const Finished closed = s.shell("$LOCKSTEP check r.toml >&- 2>err.txt");
    EXPECT_EQ(closed.code, 3) << closed.err;
    // A reader that goes away is no error to report, whatever the shell has set SIGPIPE to.
    for (const char* trap : {"", "trap '' PIPE; "}) {
        const Finished f = s.shell(fmt::format("{{ {}$LOCKSTEP recipe 2>err.txt; }} | head -1 >out.txt", trap));
        EXPECT_EQ(f.err, "") << trap;
    }
}

}  // namespace
}  // namespace lockstep::testing
