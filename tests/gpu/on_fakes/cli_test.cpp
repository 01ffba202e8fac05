// Commands with runtime.kernels = "cuda", on the fakes: the module is opened as a user's would be.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "comm/mpi/session.h"
#include "tests/cli/command.h"
#include "tests/paths.h"

namespace lockstep::testing {
namespace {

class CliGpu : public ::testing::Test {
protected:
    Finished on_gpu(const std::string& arguments) const {
        const Finished f = scratch.shell(
            fmt::format("LOCKSTEP_GPU_MODULE={} $LOCKSTEP {} >out.txt 2>err.txt", LOCKSTEP_MODULE_ON_FAKES, arguments));
        EXPECT_FALSE(has(f.err, "terminate")) << f.err;
        return f;
    }
    double final_loss(const std::string& arguments) const {
        const Finished f = on_gpu(arguments + " --json");
        EXPECT_EQ(f.code, 0) << f.err;
        return f.code == 0 ? f.json().at("final_loss").get<double>() : 0;
    }
    Scratch scratch;
};

constexpr const char* kGpu = "[runtime]\nkernels = \"cuda\"\n";

TEST_F(CliGpu, VersionSaysWhatThereIs) {
    EXPECT_TRUE(has(on_gpu("--version").out, "GPU: NVIDIA H100 80GB HBM3 (sm_90, 132 multiprocessors, 80.0 GiB), driver 13.0"));
}

// The module on fakes says that it was built for 80 and 90a.
TEST_F(CliGpu, AGpuThatItHasNoKernelsForIsRefused) {
    const auto on = [&](int capability, const std::string& arguments) {
        return scratch.shell(
            fmt::format("LOCKSTEP_FAKE_COMPUTE_CAPABILITY={} LOCKSTEP_GPU_MODULE={} $LOCKSTEP {} >out.txt 2>err.txt", capability,
                        LOCKSTEP_MODULE_ON_FAKES, arguments));
    };
    EXPECT_TRUE(
        has(on(75, "--version").out, "GPU: none: NVIDIA Other has compute capability 7.5, and Lockstep's kernels need 8.0"));
    EXPECT_TRUE(has(on(89, "--version").out, "GPU: NVIDIA Other (sm_89, ")) << scratch.read("out.txt");
    EXPECT_FALSE(has(on(89, "--version").out, "at the first start"));
    EXPECT_TRUE(has(on(120, "--version").out, "kernels compiled at the first start")) << scratch.read("out.txt");
    scratch.write("r.toml", training_recipe(1, kGpu));
    const Finished old = on(75, "train r.toml");
    EXPECT_EQ(old.code, 1);
    EXPECT_TRUE(has(old.err, "[runtime.no_gpu]")) << old.err;
    EXPECT_EQ(on(89, "train r.toml").code, 0) << scratch.read("err.txt");
}

TEST_F(CliGpu, TrainsNearTheProcessorAndGoesOnFromACheckpoint) {
    const std::string layout = "[parallelism]\ndata_parallel_shard_degree = 2\n",
                      keeps = "[checkpoint]\nenable = true\ninterval = 3\n";
    scratch.write("r.toml", training_recipe(6, kGpu + layout));
    const double whole = final_loss("train r.toml");
    EXPECT_NEAR(final_loss("train r.toml --runtime.kernels cpu --job.dump_folder cpu"), whole, 1e-3);
    EXPECT_EQ(final_loss("train r.toml --job.dump_folder again"), whole);
    EXPECT_EQ(final_loss("train r.toml --job.dump_folder watched --debug.replica_check_freq 2 --trace trace.json"), whole);

    scratch.write("c.toml", training_recipe(6, kGpu + layout + keeps));
    for (const char* mode : {"disabled", "async"}) {
        const std::string folder = fmt::format(" --job.dump_folder {0} --checkpoint.async_mode {0}", mode);
        EXPECT_EQ(final_loss("train c.toml" + folder), whole);
        EXPECT_EQ(final_loss("train c.toml --checkpoint.load_step 3" + folder), whole);
    }
    scratch.write("g.toml", training_recipe(6, kGpu));
    EXPECT_EQ(final_loss("train g.toml --job.dump_folder eager"),
              final_loss("train g.toml --job.dump_folder graph --runtime.cuda_graph true"));
}

TEST_F(CliGpu, EvaluatesAndSamples) {
    scratch.prepare({"all work and no play makes jack a dull boy ", "the quick brown fox jumps over the lazy dog "});
    scratch.write("r.toml", prepared_recipe("local_batch_size = 2\nseq_len = 16\nsteps = 4\n") + kGpu);
    const Finished trained = on_gpu("train r.toml --checkpoint.enable true");
    ASSERT_EQ(trained.code, 0) << trained.err;
    const Finished gpu = on_gpu("eval out --runtime.kernels cuda --json"), cpu = on_gpu("eval out --runtime.kernels cpu --json");
    ASSERT_EQ(gpu.code, 0) << gpu.err;
    EXPECT_NEAR(gpu.json().at("loss").get<double>(), cpu.json().at("loss").get<double>(), 1e-3);
    const Finished text = on_gpu("sample out --runtime.kernels cuda --prompt 'the quick' --max-tokens 8 --temperature 0");
    EXPECT_EQ(text.code, 0) << text.err;
    EXPECT_EQ(text.out, on_gpu("sample out --runtime.kernels cpu --prompt 'the quick' --max-tokens 8 --temperature 0").out);
}

// Islands as jobs of their own, which meet over the host, have the bits of islands of one job.
TEST_F(CliGpu, IslandsMeetOverTheHost) {
    if (!comm::mpi::is_built()) GTEST_SKIP() << "built without MPI";
    scratch.write("r.toml", training_recipe(8, kGpu + std::string("[fault_tolerance]\nenable = true\nsemi_sync_method = "
                                                                  "\"diloco\"\ngroup_size = 2\nsync_steps = 4\n"
                                                                  "num_fragments = 2\n[checkpoint]\nenable = true\n")));
    const auto weights = [&](const std::string& folder) {
        return scratch.read(folder + "/checkpoint/step-00000008/model.safetensors");
    };
    for (const std::string quantized : {"false", "true"}) {
        const std::string flags = " --fault_tolerance.should_quantize " + quantized;
        const Finished one = on_gpu("train r.toml --job.dump_folder a" + flags);
        ASSERT_EQ(one.code, 0) << one.err;
        const Finished jobs =
            scratch.shell("LOCKSTEP_GPU_MODULE=" LOCKSTEP_MODULE_ON_FAKES
                          " timeout 100 $LOCKSTEP launch --mpirun \"$MPIRUN\" -- train r.toml --job.dump_folder b" +
                          flags + " >out.txt 2>err.txt");
        ASSERT_EQ(jobs.code, 0) << jobs.err;
        EXPECT_FALSE(weights("a").empty());
        EXPECT_TRUE(weights("a") == weights("b")) << "quantized: " << quantized;
        ASSERT_EQ(scratch.shell("rm -r a b").code, 0);
    }
}

// What a computer without a GPU compiles for a cluster file. The fakes have no cuDNN, and the recipes masks that it does not
// serve.
TEST_F(CliGpu, RunsTheProgramThatIsPlannedWithoutOne) {
    // Ranks share a GPU here; where nothing is said, each has a process of its own.
    const std::string file =
        " --cluster.file " LOCKSTEP_SOURCE_DIR "/clusters/h100.toml --cluster.ranks_per_host 4 --cluster.ranks_per_process 4";
    const auto program = [](const Finished& shown) { return shown.out.substr(shown.out.find("mesh ")); };
    scratch.write("r.toml", training_recipe(2, kGpu));
    scratch.write("g.toml", std::string("[model]\nname = \"gpt2\"\nflavor = \"debugmodel\"\n[training]\nseq_len = 40\n") + kGpu);
    for (const std::string recipe :
         {"r.toml", "r.toml --parallelism.data_parallel_shard_degree 2 --parallelism.tensor_parallel_degree 2",
          "r.toml --parallelism.pipeline_parallel_degree 2 --training.mixed_precision_param bfloat16",
          "g.toml --training.mixed_precision_param float16 --optimizer.name Muon"}) {
        const Finished here = on_gpu("show " + recipe), there = scratch.lockstep("show " + recipe + file);
        ASSERT_EQ(here.code, 0) << here.err;
        ASSERT_EQ(there.code, 0) << there.err;
        EXPECT_TRUE(has(there.out, "cublaslt.matmul")) << there.out;
        EXPECT_EQ(program(here), program(there)) << recipe;
    }
}

// A plan for the GPU that `bench` has measured is of the program that runs there.
TEST_F(CliGpu, IsMeasuredAndPlannedFor) {
    const Finished bench = on_gpu("bench --kernels cuda --quick --seconds 1 --out gpu.toml --json");
    ASSERT_EQ(bench.code, 0) << bench.err;
    EXPECT_GT(bench.json()["kernels"].get<int>(), 100);
    for (const char* block : {"cudnn.attention_block", "cudnn.attention_block_backward", "gpu.attention_block"})
        EXPECT_TRUE(has(scratch.read("gpu.toml"), std::string("\"") + block + "\"")) << block;
    scratch.write("r.toml", training_recipe(2, kGpu));
    // The memory of the fakes is less than their GPU says.
    const std::string memory = " --cluster.memory_gib_per_rank 1 --cluster.reserve_gib_per_rank 0";
    const Finished plan = on_gpu("plan r.toml --cluster gpu.toml --json" + memory),
                   check = on_gpu("check r.toml --json" + memory);
    ASSERT_EQ(plan.code, 0) << plan.err;
    EXPECT_GT(plan.json()["measured_share"].get<double>(), 0.99);
    EXPECT_EQ(plan.json()["needed_bytes"], check.json()["stages"][0]["bytes"]["total"]);
    const Finished large = on_gpu("bench --kernels cuda --seconds 1 --out large.toml");
    EXPECT_EQ(large.code, 1);
    EXPECT_TRUE(has(large.err, "bench: the GPU refused 4294967296 bytes for operands")) << large.err;
    EXPECT_TRUE(has(large.err, "[bench.memory]")) << large.err;
}

// cuBLASLt's first algorithms are slower here, and the others sum in other orders.
TEST_F(CliGpu, ChoosesAlgorithmsOfProductsByMeasurement) {
    scratch.write("r.toml", training_recipe(2, kGpu));
    const Finished bench = scratch.shell(
        fmt::format("LOCKSTEP_FAKE_FIRST_ALGORITHM_US=3000 LOCKSTEP_GPU_MODULE={} $LOCKSTEP bench --products r.toml --out p.toml "
                    "--quick --json --training.mixed_precision_param bfloat16 >out.txt 2>err.txt",
                    LOCKSTEP_MODULE_ON_FAKES));
    ASSERT_EQ(bench.code, 0) << bench.err;
    const int products = bench.json()["products"].get<int>();
    EXPECT_GT(products, 8);
    EXPECT_EQ(bench.json()["faster"].get<int>(), products);
    EXPECT_EQ(bench.json()["device"], "NVIDIA H100 80GB HBM3");
    EXPECT_LT(bench.json()["chosen_s"].get<double>(), bench.json()["first_s"].get<double>());

    // The choice is part of the program, and of what it computes.
    const std::string bf16 = " --training.mixed_precision_param bfloat16", chosen = bf16 + " --runtime.products p.toml";
    const Finished show = on_gpu("show r.toml" + chosen);
    EXPECT_TRUE(has(show.out, "kernel cublaslt.matmul@")) << show.err;
    EXPECT_TRUE(
        has(show.err, fmt::format("runtime.products = \"p.toml\": {} rows of NVIDIA H100 80GB HBM3 with cuBLASLt ", products)))
        << show.err;
    const Finished first = on_gpu("show r.toml" + bf16);
    EXPECT_FALSE(has(first.out, "matmul@"));
    const double loss = final_loss("train r.toml" + chosen);
    EXPECT_NEAR(final_loss("train r.toml --job.dump_folder first" + bf16), loss, 1e-2);
    EXPECT_EQ(final_loss("train r.toml --job.dump_folder again" + chosen), loss);

    // A plan takes the times of the rows.
    const std::string h100 = " --cluster " LOCKSTEP_SOURCE_DIR "/clusters/h100.toml --json";
    const auto step_s = [&](const std::string& arguments) {
        const Finished plan = scratch.lockstep("plan r.toml" + arguments + h100);
        EXPECT_EQ(plan.code, 0) << plan.err;
        return plan.code == 0 ? plan.json()["step_time_s"].get<double>() : 0;
    };
    EXPECT_GT(step_s(chosen), 2 * step_s(bf16)) << "the fakes are slower than an H100";

    // Rows of another version, of another device, and words of another product.
    const std::string text = scratch.read("p.toml");
    const auto write = [&](const std::string& from, const std::string& to) {
        std::string other = text;
        other.replace(other.find(from), from.size(), to);
        scratch.write("other.toml", other);
    };
    for (const auto& [from, to] : {std::pair{"version = ", "version = 9"}, {"H100", "H200"}}) {
        write(from, to);
        const Finished other = on_gpu("show r.toml --runtime.products other.toml" + bf16);
        EXPECT_EQ(other.out, first.out);
        EXPECT_TRUE(has(other.err, fmt::format("0 of {} rows serve: they are of NVIDIA H", products))) << other.err;
        EXPECT_TRUE(has(other.err, "cuBLASLt chooses by itself")) << other.err;
    }
    const std::string word = text.substr(text.find("words = \""), 10);
    write(word, word.substr(0, 9) + (word.back() == '1' ? '2' : '1'));
    const Finished foreign = on_gpu("train r.toml --job.dump_folder foreign --runtime.products other.toml" + bf16);
    EXPECT_EQ(foreign.code, 1) << foreign.err;
    EXPECT_TRUE(has(foreign.err, "cuBLASLt does not take the algorithm of ")) << foreign.err;
    EXPECT_TRUE(has(foreign.err, "write the file of runtime.products again with lockstep bench --products RECIPE"))
        << foreign.err;
    EXPECT_TRUE(has(foreign.err, "[runtime.products]")) << foreign.err;
    const Finished none = on_gpu("train r.toml --runtime.products none.toml");
    EXPECT_EQ(none.code, 1);
    EXPECT_TRUE(has(none.err, "runtime.products = \"none.toml\": cannot be read")) << none.err;
    EXPECT_EQ(on_gpu("bench --training.seq_len 8 --quick").code, 1);
    EXPECT_TRUE(has(scratch.read("err.txt"), "[bench.settings]")) << scratch.read("err.txt");
}

TEST_F(CliGpu, RefusesWhatAGpuHasNot) {
    scratch.write("r.toml", training_recipe(1, kGpu));
    const Finished wide = on_gpu("check r.toml --training.dtype float64");
    EXPECT_EQ(wide.code, 1);
    EXPECT_TRUE(has(wide.err, "runtime.kernels = \"cuda\": none of the kernels of gpu serves")) << wide.err;
    EXPECT_TRUE(has(wide.err, "choose runtime.kernels = \"cpu\"")) << wide.err;
    const Finished late = on_gpu("train r.toml --debug.device late");
    EXPECT_EQ(late.code, 1);
    EXPECT_TRUE(has(late.err, "debug.device = \"late\" runs the kernels of the host")) << late.err;
    EXPECT_TRUE(has(late.err, "[recipe.device]")) << late.err;
}

}  // namespace
}  // namespace lockstep::testing
