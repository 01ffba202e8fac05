// The commands as a user types them: training, resuming, stopping, what scripts may rely on (docs/cli.md).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <sstream>

#include "tests/cli/command.h"

namespace lockstep::testing {
namespace {

TEST(CliTrain, PrintsOneJsonObjectAndWritesMetrics) {
    Scratch s;
    s.write("r.toml", training_recipe(6));
    const Finished f =
        s.lockstep("train r.toml --json --parallelism.tensor_parallel_degree 2 --parallelism.data_parallel_shard_degree 2");
    ASSERT_EQ(f.code, 0) << f.err;
    const nlohmann::json j = f.json();
    EXPECT_EQ(j["steps"], 6);
    EXPECT_NEAR(j["final_loss"].get<double>(), 4.08025, 1e-3);
    EXPECT_GT(j["tokens_per_s"].get<double>(), 0);
    EXPECT_GT(j["step_time_s"].get<double>(), 0);
    EXPECT_TRUE(j["checkpoint"].is_null());
    int count = 0;
    for (const nlohmann::json& m : s.objects("out/metrics.jsonl")) {
        EXPECT_EQ(m["step"], ++count);
        for (const char* key : {"loss_metrics/global_avg_loss", "grad_norm", "lr", "n_tokens_seen", "throughput(tps)", "tflops",
                                "time_metrics/end_to_end(s)", "memory/max_active(GiB)"}) {
            EXPECT_TRUE(m.contains(key)) << key;
        }
        EXPECT_EQ(m["n_tokens_seen"], 64 * count);
    }
    EXPECT_EQ(count, 6);
}

// Too large a scale costs steps that do not count, and neither stops the run nor keeps a checkpoint from being written.
TEST(CliTrain, HalvesTheLossScaleOfFloat16UntilGradientsFit) {
    Scratch s;
    s.write("r.toml", training_recipe(20) + "[checkpoint]\nenable = true\ninterval = 1\nkeep_latest_k = 0\n");
    const std::string half = "train r.toml --json --training.mixed_precision_param float16 --training.max_nonfinite_steps 2 ";
    const Finished f = s.lockstep(half + "--training.initial_loss_scale 1e9");
    ASSERT_EQ(f.code, 0) << f.err;
    EXPECT_NE(f.err.find("float16 parameters over float32 master weights, dynamic loss scale"), std::string::npos) << f.err;
    EXPECT_NE(f.err.find("step 1: float16 overflows with a loss scale of 1000000000: the step does not count; the next scale is "
                         "500000000"),
              std::string::npos)
        << f.err;
    const std::vector<nlohmann::json> metrics = s.objects("out/metrics.jsonl");
    EXPECT_EQ(metrics.front()["loss_scale"], 1e9);
    EXPECT_LT(metrics.back()["loss_scale"].get<double>(), 3e8);
    EXPECT_TRUE(std::filesystem::exists(s.path("out/checkpoint/step-00000001")));
    EXPECT_LT(f.json()["final_loss"].get<double>(), metrics.front()["loss_metrics/global_avg_loss"].get<double>());

    const Finished fixed = s.lockstep(half + "--training.loss_scale 1e30 --job.dump_folder fixed");
    EXPECT_EQ(fixed.code, 3);
    EXPECT_NE(fixed.err.find("stopped: 2 steps in a row were not finite"), std::string::npos) << fixed.err;
}

// The figures of the plain loops in double precision, on one rank and on four.
TEST(CliTrain, ReachesTheSameLossEverywhere) {
    Scratch s;
    s.write("r.toml", training_recipe(6));
    for (const char* degrees : {"1", "2"}) {
        const Finished f = s.lockstep(fmt::format(
            "train r.toml --json --runtime.kernels reference --training.dtype float64 --training.mixed_precision_param float64 "
            "--job.dump_folder of{0} --parallelism.tensor_parallel_degree {0} --parallelism.data_parallel_shard_degree {0}",
            degrees));
        ASSERT_EQ(f.code, 0) << f.err;
        EXPECT_NEAR(f.json()["final_loss"].get<double>(), 4.080254403687428, 1e-9) << degrees;
    }
}

TEST(CliTrain, ReplicasAreHeldAgainstEachOther) {
    Scratch s;
    s.write("r.toml", training_recipe(6) + "[parallelism]\ndata_parallel_replicate_degree = 2\ntensor_parallel_degree = 2\n");
    const Finished with = s.lockstep("train r.toml --json --debug.replica_check_freq 2"),
                   without = s.lockstep("train r.toml --json");
    EXPECT_EQ(with.code, 0) << with.err;
    EXPECT_EQ(with.json()["final_loss"], without.json()["final_loss"]);
    const Finished bad = s.lockstep("train r.toml --debug.replica_check_freq -1");
    EXPECT_EQ(bad.code, 1);
    EXPECT_NE(bad.err.find("debug.replica_check_freq = -1: must be from 0 to 1000000000000 [recipe.out_of_range]"),
              std::string::npos)
        << bad.err;
}

TEST(CliTrain, ResidentMemoryIsWhatCheckSaid) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "a sanitizer's own memory counts as resident";
#endif
    Scratch s;
    s.write("r.toml", training_recipe(6) + "[parallelism]\ndata_parallel_shard_degree = 2\n");
    const std::string larger =
        " --model.dim 256 --model.ffn_dim 512 --model.vocab_size 8000 --training.seq_len 256 --training.steps 2";
    const Finished f = s.lockstep("train r.toml --json" + larger);
    ASSERT_EQ(f.code, 0) << f.err;
    const double planned = f.json()["peak_bytes_planned"], resident = f.json()["peak_bytes_resident"];
    EXPECT_GT(planned, 50e6);
    EXPECT_LT(std::abs(resident - planned), 0.05 * planned + (16 << 20)) << "planned " << planned << ", resident " << resident;
    const nlohmann::json checked = s.lockstep("check r.toml --json" + larger).json();
    EXPECT_EQ(checked["stages"][0]["bytes"]["total"].get<double>() * checked["ranks"].get<double>(), planned);
}

TEST(CliTrain, ResumesBitwiseAndGoesOnInAnotherLayout) {
    Scratch s;
    s.write("r.toml",
            training_recipe(6) + "[checkpoint]\nenable = true\ninterval = 3\n[parallelism]\ndata_parallel_shard_degree = 2\n");
    ASSERT_EQ(s.lockstep("train r.toml --job.dump_folder whole").code, 0);
    ASSERT_EQ(s.lockstep("train r.toml --job.dump_folder parts --training.steps 3 --lr_scheduler.total_steps 6").code, 0);
    const Finished second = s.lockstep("train r.toml --job.dump_folder parts --lr_scheduler.total_steps 6");
    ASSERT_EQ(second.code, 0) << second.err;
    EXPECT_NE(second.err.find("resumed from parts/checkpoint/step-00000003 at step 3"), std::string::npos) << second.err;
    for (const char* file : {"model.safetensors", "optimizer.safetensors"}) {
        const std::string whole = s.read(std::string("whole/checkpoint/step-00000006/") + file),
                          parts = s.read(std::string("parts/checkpoint/step-00000006/") + file);
        EXPECT_FALSE(whole.empty());
        EXPECT_TRUE(whole == parts) << file << " differs after a resume";
    }
    const Finished other = s.lockstep(
        "train r.toml --job.dump_folder parts --training.steps 8 --parallelism.tensor_parallel_degree 2 "
        "--parallelism.data_parallel_shard_degree 1 --json");
    ASSERT_EQ(other.code, 0) << other.err;
    EXPECT_NE(other.err.find("not bitwise"), std::string::npos) << other.err;
    EXPECT_EQ(other.json()["steps"], 8);
}

// What is dropped depends on the samples seen, so a run that was cut in two drops the same, on another layout too.
TEST(CliTrain, DropoutGoesOnWhereARunWasCut) {
    Scratch s;
    std::string recipe = training_recipe(6) + "[checkpoint]\nenable = true\ninterval = 3\n";
    recipe.replace(recipe.find("n_kv_heads = 2"), 14, "name = \"gpt2\"\nn_positions = 64\ndropout = 0.2");
    s.write("r.toml", recipe);
    ASSERT_EQ(s.lockstep("train r.toml --job.dump_folder whole").code, 0);
    ASSERT_EQ(s.lockstep("train r.toml --job.dump_folder parts --training.steps 3 --lr_scheduler.total_steps 6").code, 0);
    const Finished second = s.lockstep("train r.toml --job.dump_folder parts --lr_scheduler.total_steps 6 --json");
    ASSERT_EQ(second.code, 0) << second.err;
    const std::string file = "/checkpoint/step-00000006/model.safetensors";
    EXPECT_FALSE(s.read("whole" + file).empty());
    EXPECT_TRUE(s.read("whole" + file) == s.read("parts" + file)) << "weights differ after a resume";
    const Finished tp = s.lockstep("train r.toml --job.dump_folder tp --parallelism.tensor_parallel_degree 2 --json"),
                   none = s.lockstep("train r.toml --job.dump_folder none --model.dropout 0.0 --json");
    const double loss = second.json()["final_loss"];
    EXPECT_NEAR(tp.json()["final_loss"].get<double>(), loss, 1e-5 * loss) << tp.err;
    EXPECT_GT(std::abs(none.json()["final_loss"].get<double>() - loss), 1e-4 * loss) << none.err;
}

TEST(CliTrain, StopSignalWritesACheckpointAndExits4) {
    Scratch s;
    s.write("r.toml", training_recipe(6) + "[checkpoint]\nenable = true\ninterval = 100000\n");
    const Finished f =
        s.lockstep("train r.toml --training.steps 100000000 --lr_scheduler.decay_ratio 0.1 --metrics.log_freq 100000", 1.0);
    EXPECT_EQ(f.code, 4) << f.err;
    EXPECT_NE(f.err.find("checkpoint written: "), std::string::npos) << f.err;
    const Finished again = s.lockstep("train r.toml --json --checkpoint.load_step 7");
    EXPECT_EQ(again.code, 1);
    EXPECT_NE(again.err.find("checkpoint.load_step = 7"), std::string::npos) << again.err;
    const Finished unsaved =
        s.lockstep("train r.toml --checkpoint.enable false --training.steps 100000000 --metrics.log_freq 100000", 1.0);
    EXPECT_EQ(unsaved.code, 3) << unsaved.err;
    EXPECT_NE(unsaved.err.find("nothing was saved"), std::string::npos) << unsaved.err;
}

TEST(CliTrain, WatchWritesATensorInGlobalOrderWhateverTheLayout) {
    Scratch s;
    s.write("r.toml", training_recipe(6) + "[runtime]\nkernels = \"reference\"\n");
    const auto compare = [&](const std::string& name, const std::string& shape, int size, const std::string& tp) {
        const std::string run =
            "train r.toml --training.dtype float64 --training.steps 1 --watch '" + name + "' --job.dump_folder ";
        ASSERT_EQ(s.lockstep(run + "a").code, 0);
        const Finished f =
            s.lockstep(run + "b --parallelism.tensor_parallel_degree " + tp + " --parallelism.data_parallel_shard_degree 2");
        ASSERT_EQ(f.code, 0) << f.err;
        std::istringstream a(s.read("a/watch/" + name + ".step1.txt")), b(s.read("b/watch/" + name + ".step1.txt"));
        std::string first_a, first_b;
        std::getline(a, first_a);
        std::getline(b, first_b);
        EXPECT_EQ(first_a, "# " + name + " step 1 shape " + shape);
        EXPECT_EQ(first_a, first_b);
        double x = 0, y = 0;
        int values = 0;
        while (a >> x && b >> y) {
            EXPECT_NEAR(x, y, 1e-10);
            ++values;
        }
        EXPECT_EQ(values, size);
    };
    compare("layer[1].forward.q_rot", "[4, 16, 2, 2, 4]", 4 * 16 * 2 * 2 * 4, "4");
    compare("layer[1].forward.qkv", "[4, 16, 4, 2, 4]", 4 * 16 * 4 * 2 * 4, "2");  // a list of heads on each rank
    const Finished unknown = s.lockstep("train r.toml --watch nothing --training.dtype float64");
    EXPECT_EQ(unknown.code, 1);
    EXPECT_NE(unknown.err.find("--watch nothing: no op makes a tensor of that name"), std::string::npos) << unknown.err;
}

TEST(CliDiff, NamesTheFirstTensorThatDiffers) {
    Scratch s;
    const std::string base = training_recipe(6) + "[runtime]\nkernels = \"reference\"\n";
    s.write("a.toml", base);
    s.write("b.toml", base + "[parallelism]\ntensor_parallel_degree = 2\ndata_parallel_shard_degree = 2\n");
    s.write("c.toml", base + "[activation_checkpoint]\nmode = \"full\"\n");
    Finished f = s.lockstep("diff a.toml b.toml --training.dtype float64 --steps 2 --json");
    EXPECT_EQ(f.code, 0) << f.err << f.out;
    EXPECT_TRUE(f.json()["equal"]);
    EXPECT_GT(f.json()["compared"].get<int>(), 50);
    std::string changed = base;
    changed.replace(changed.find("n_kv_heads"), 0, "rope_theta = 1000.0\n");
    s.write("d.toml", changed);
    f = s.lockstep("diff a.toml d.toml --training.dtype float64 --json");
    EXPECT_EQ(f.code, 1);
    EXPECT_EQ(f.json()["first"]["tensor"], "layer[0].forward.q_rot") << f.out;
    f = s.lockstep("diff a.toml c.toml --training.dtype float64");
    EXPECT_EQ(f.code, 0) << f.err;
    EXPECT_NE(f.out.find("equal: "), std::string::npos);
    s.write("e.toml", base + "[debug]\nseed = 0\n[cluster]\nranks = 1\n[validation]\nfreq = 3\n");
    f = s.lockstep("diff a.toml e.toml --training.global_batch_size 3");
    EXPECT_EQ(f.code, 0) << f.err;
}

TEST(CliShow, PassesAndDifferencesOfPrograms) {
    Scratch s;
    s.write("a.toml", training_recipe(6));
    s.write("b.toml", training_recipe(6) + "[activation_checkpoint]\nmode = \"full\"\n");
    Finished f = s.lockstep("show a.toml --after shard");
    EXPECT_EQ(f.code, 0);
    EXPECT_NE(f.out.find("routine layer.backward"), std::string::npos);
    EXPECT_EQ(f.out.find("kernel", f.out.find('\n')), std::string::npos);  // but in the line that names the machine
    f = s.lockstep("show a.toml --against b.toml");
    EXPECT_NE(f.out.find("@ routine layer.forward\n-"), std::string::npos) << f.out.substr(0, 500);
    f = s.lockstep("show a.toml --passes --json");
    EXPECT_EQ(f.json()["passes"].size(), 25u);
    f = s.lockstep("show a.toml --skip fuse_loss");
    EXPECT_EQ(f.out.find("routine head.loss"), std::string::npos);
    f = s.lockstep("show a.toml --after nonsense");
    EXPECT_EQ(f.code, 1);
    EXPECT_NE(f.err.find("--after nonsense: the passes are build_blocks"), std::string::npos) << f.err;
}

TEST(CliTrain, AFusedKernelCanBeSwitchedOff) {
    Scratch s;
    s.write("r.toml", tiny_recipe("[training]\ndataset = \"synthetic\"\nseq_len = 16\nlocal_batch_size = 1\nsteps = 3\n"));
    const Finished whole = s.lockstep("train r.toml --json --job.dump_folder a");
    const Finished apart = s.lockstep(
        "train r.toml --json --job.dump_folder b --runtime.disabled_kernels swiglu,add_rmsnorm,addmm,rmsnorm_backward_add");
    ASSERT_EQ(apart.code, 0) << apart.err;
    EXPECT_NEAR(whole.json()["final_loss"].get<double>(), apart.json()["final_loss"].get<double>(), 1e-4);
    EXPECT_NE(s.lockstep("show r.toml").out.find("rmsnorm_backward_add("), std::string::npos);
    EXPECT_EQ(s.lockstep("show r.toml --runtime.disabled_kernels rmsnorm_backward_add").out.find("rmsnorm_backward_add("),
              std::string::npos);
}

}  // namespace
}  // namespace lockstep::testing
