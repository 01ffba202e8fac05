// Commands on the device that runs late (debug.device) do and write what they do on the host.
#include <gtest/gtest.h>

#include "comm/mpi/session.h"
#include "tests/cli/command.h"

namespace lockstep::testing {
namespace {

const std::string kLate = " --debug.device late --debug.device_seed 5";

TEST(CliLateDevice, TrainingEvaluationSamplesAndWatchedTensorsAreTheSame) {
    Scratch s;
    std::string text;
    for (int i = 0; i < 60; ++i) text += "abcdefgh ";
    s.prepare({text, text + "x", text + "xx", text + "xxx"});
    s.write("r.toml", prepared_recipe("local_batch_size = 2\nseq_len = 32\nsteps = 6\n[checkpoint]\nenable = true\ninterval = 3\n"
                                      "async_mode = \"async\"\n[parallelism]\ndata_parallel_shard_degree = 2\n"
                                      "tensor_parallel_degree = 2\n[validation]\nenable = true\nfreq = 3\n"
                                      "[debug]\nreplica_check_freq = 2\n"));
    const auto train = [&](const std::string& folder, const std::string& more) {
        const Finished f = s.lockstep("train r.toml --watch 'layer[0].forward.o' --trace " + folder + ".json --job.dump_folder " +
                                      folder + more);
        ASSERT_EQ(f.code, 0) << f.err;
    };
    train("host", "");
    train("late", kLate);
    const auto metrics = [&](const std::string& folder) {
        std::string out;
        for (const nlohmann::json& j : s.objects(folder + "/metrics.jsonl")) {
            for (const char* key : {"step", "loss", "grad_norm", "validation_loss"}) {
                if (j.contains(key)) out += std::string(key) + " " + j[key].dump() + "\n";
            }
        }
        return out;
    };
    EXPECT_NE(metrics("host"), "");
    EXPECT_EQ(metrics("host"), metrics("late"));
    for (const std::string file : {"watch/'layer[0].forward.o.step6.txt'", "checkpoint/step-00000006/model.safetensors",
                                   "checkpoint/step-00000006/optimizer.safetensors"}) {
        EXPECT_EQ(s.shell("cmp host/" + file + " late/" + file).code, 0) << file;
    }
    for (const std::string& command :
         {std::string("sample host --json --prompt 'abcdefgh abc' --max-tokens 9 --seed 3"), std::string("eval host --json")}) {
        const Finished host = s.lockstep(command), late = s.lockstep(command + kLate);
        ASSERT_EQ(host.code, 0) << host.err;
        ASSERT_EQ(late.code, 0) << late.err;
        nlohmann::json a = host.json(), b = late.json();
        for (nlohmann::json* j : {&a, &b}) {
            for (const char* key : {"tokens_per_s", "prefill_s", "decode_s"}) j->erase(key);
        }
        EXPECT_EQ(a, b);
    }
}

TEST(CliLateDevice, TakesOneProcess) {
    if (!comm::mpi::is_built()) GTEST_SKIP() << "built without MPI";
    Scratch s;
    s.write("r.toml", training_recipe(2, "[parallelism]\ndata_parallel_shard_degree = 2\n"));
    const Finished f = s.in_processes(2, "train r.toml --json" + kLate);
    EXPECT_EQ(f.code, 1);
    EXPECT_TRUE(has(f.out, "\"id\":\"job.device\"")) << f.out;
    EXPECT_TRUE(has(f.out, "are threads of one process, and the job has 2")) << f.out;
}

}  // namespace
}  // namespace lockstep::testing
