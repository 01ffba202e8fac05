// Bad input of every kind: one clear message, the documented exit code.
#include <gtest/gtest.h>

#include "tests/cli/command.h"

namespace lockstep::testing {
namespace {

const std::string kSynthetic = "[training]\ndataset = \"synthetic\"\nlocal_batch_size = 1\nseq_len = 8\nsteps = 1\n";

struct Case {
    const char *arguments, *message;
    int code = 1;
};

class CliErrors : public ::testing::TestWithParam<Case> {};

TEST_P(CliErrors, SayWhatIsWrong) {
    Scratch s;
    s.write("r.toml", tiny_recipe(kSynthetic));
    s.write("broken.toml", "[training\nsteps = 1\n");
    s.write("outside.toml", "steps = 1\n");
    const Finished f = s.lockstep(GetParam().arguments);
    EXPECT_EQ(f.code, GetParam().code) << f.err;
    EXPECT_NE((f.err + f.out).find(GetParam().message), std::string::npos) << f.err << f.out;
}

INSTANTIATE_TEST_SUITE_P(
    All, CliErrors,
    ::testing::Values(
        Case{"train absent.toml", "recipe absent.toml: cannot be read"}, Case{"train broken.toml", "not TOML"}, Case{"train outside.toml", "steps stands outside any [section]"},
        Case{"train r.toml --training.stepz 3", "there is no key training.stepz; the nearest is training.steps"},
        Case{"train r.toml --training.steps many", "training.steps = \"many\" must be an integer"}, Case{"train r.toml --training.steps -1", "training.steps = -1: must be at least 0"},
        Case{"train r.toml --metrics.log_freq 0", "metrics.log_freq = 0: must be at least 1"},
        Case{"train r.toml --training.dataset prepared", "training.dataset_path is not set"},
        Case{"train r.toml --training.dataset other", "training.dataset = \"other\": must be prepared or synthetic"},
        Case{"train r.toml --validation.enable true", "synthetic data has no held-out split"},
        Case{"train r.toml --runtime.kernels fast", "runtime.kernels = \"fast\": must be cpu or reference"},
        Case{"train r.toml --runtime.threads_per_rank -1", "runtime.threads_per_rank = -1: must lie between 0 and 1024"},
        Case{"train r.toml --runtime.comm_thread maybe", "runtime.comm_thread = \"maybe\": must be auto, on or off"},
        Case{"train r.toml --lr_scheduler.warmup_steps 99", "lr_scheduler.warmup_steps = 99"},
        Case{"train r.toml --lr_scheduler.decay_type step", "must be linear, sqrt or cosine"},
        Case{"train r.toml --lr_scheduler.decay_ratio 2.0", "lr_scheduler.decay_ratio = 2"},
        Case{"train r.toml --lr_scheduler.min_lr_factor 2.0", "lr_scheduler.min_lr_factor = 2"},
        Case{"train r.toml --job.dump_folder /proc/nothing", "job.dump_folder: /proc/nothing cannot be made"},
        Case{"check r.toml --cluster.memory_gib_per_rank 0.000001", "too much; what would help most"},
        Case{"check r.toml --parallelism.pipeline_parallel_degree 2", "asks for what this version does not have"},
        Case{"check r.toml --activation_checkpoint.mode selective", "this version has none and full"},
        Case{"recipe --explain training.stepz", "the nearest is training.steps"},
        Case{"diff r.toml r.toml --training.global_batch_size 0", "training.global_batch_size = 0: must be at least 1"},
        Case{"data prepare /no/such/place --out d", "/no/such/place"}, Case{"train", "recipe is required", 2}, Case{"", "subcommand is required", 2},
        Case{"train r.toml --frobnicate", "--frobnicate", 2}, Case{"check r.toml --json --training.seq_len 0", "\"key\":\"training.seq_len\""}));

TEST(CliCheck, JsonOfARefusalHasMessageAndKey) {
    Scratch s;
    s.write("r.toml", tiny_recipe(kSynthetic));
    Finished f = s.lockstep("check r.toml --json --cluster.memory_gib_per_rank 0.0001");
    EXPECT_EQ(f.code, 1);
    EXPECT_FALSE(f.json()["fits"]);
    EXPECT_EQ(f.json()["ranks"], 1);
    EXPECT_FALSE(f.json()["error"]["key"].get<std::string>().empty());
    f = s.lockstep("check r.toml --json");
    EXPECT_EQ(f.code, 0);
    int64_t sum = 0;
    for (const char* kind : {"weights", "gathered", "gradients", "optimizer", "activations", "workspace", "communication", "input", "snapshot"}) {
        sum += f.json()["stages"][0]["bytes"][kind].get<int64_t>();
    }
    EXPECT_EQ(sum, f.json()["stages"][0]["bytes"]["total"].get<int64_t>());
    EXPECT_GT(f.json()["stages"][0]["flops_executed"].get<double>(), 0);
}

TEST(CliHelp, EveryCommandHasAnExample) {
    Scratch s;
    for (const char* command : {"train", "check", "show", "diff", "data prepare", "recipe"}) {
        const Finished f = s.lockstep(std::string(command) + " --help");
        EXPECT_EQ(f.code, 0);
        EXPECT_NE(f.out.find("Example: lockstep"), std::string::npos) << command;
        EXPECT_NE(f.out.find("--json"), std::string::npos) << command;
    }
}

}  // namespace
}  // namespace lockstep::testing
