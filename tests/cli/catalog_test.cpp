// A plan for a machine that is not here: its kernels come from its cluster file, whatever processor plans.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <vector>

#include "cli/app.h"
#include "kernels/cpu/isa.h"
#include "tests/cli/command.h"
#include "tests/paths.h"

namespace lockstep::testing {
namespace {

const std::string kSource = LOCKSTEP_SOURCE_DIR;

// The tables of a measured machine; `kernels` goes on in [machine].
std::string processor(const std::string& kernels) {
    return "name = \"other\"\n[machine]\ncores = 4\nmemory_bytes = 8e9\n" + kernels +
           "[rates]\nbytes_per_s = [1e10]\n[rates.flops_per_s]\nf32 = [1e11]\nbf16 = [4e11]\n";
}

// Everything that a command prints on standard output, in this process and on its instruction set.
std::string printed(const std::vector<std::string>& words) {
    std::vector<const char*> argv = {"lockstep", "--quiet"};
    argv[1] = words[0].c_str();
    for (size_t i = 1; i < words.size(); ++i) argv.push_back(words[i].c_str());
    ::testing::internal::CaptureStdout();
    const int code = cli::run(static_cast<int>(argv.size()), argv.data());
    std::string out = ::testing::internal::GetCapturedStdout();
    EXPECT_EQ(code, 0) << words[0] << ": " << out;
    return out;
}

// On the best instruction set of this processor, and without any.
std::pair<std::string, std::string> on_two_sets(const std::vector<std::string>& words) {
    using kernels::cpu::use_isa;
    const std::string best = printed(words);
    use_isa(kernels::cpu::Isa::baseline);
    std::string plain = printed(words);
    use_isa(kernels::cpu::detect_isa());
    return {best, plain};
}

TEST(CliCatalog, AnyProcessorPrintsTheSameBytesForAMachineThatIsNotHere) {
    if (kernels::cpu::detect_isa() == kernels::cpu::Isa::baseline) GTEST_SKIP() << "this processor has one instruction set";
    Scratch s;
    s.write("amx.toml", processor("instruction_sets = [\"avx512\", \"avx512_bf16\", \"amx\"]\n"));
    s.write("r.toml", training_recipe(2) + "[parallelism]\ntensor_parallel_degree = 2\n");
    const std::string shipped = kSource + "/recipes/llama3_8b_torchtitan.toml";
    const std::vector<std::vector<std::string>> commands = {
        {"check", shipped},
        {"plan", shipped},
        {"show", shipped},
        {"check", shipped, "--json"},
        {"check", s.path("r.toml"), "--cluster", s.path("amx.toml"), "--training.mixed_precision_param", "bfloat16"},
        {"plan", s.path("r.toml"), "--cluster", s.path("amx.toml"), "--training.mixed_precision_param", "bfloat16"},
        {"show", s.path("r.toml"), "--cluster.file", s.path("amx.toml"), "--training.mixed_precision_param", "bfloat16"}};
    for (const std::vector<std::string>& words : commands) {
        const auto [best, plain] = on_two_sets(words);
        EXPECT_EQ(best, plain) << words[0] << " " << words[1];
        EXPECT_FALSE(best.empty());
    }
}

// What is left to this machine says so in the first line.
TEST(CliCatalog, WithoutAFileTheFirstLineNamesThisMachinesKernels) {
    Scratch s;
    s.write("r.toml", training_recipe(2));
    s.write("old.toml", processor(""));
    const std::string here = fmt::format("cpu kernels for {}", fmt::join(words_of(kernels::cpu::instruction_sets_here()), ", "));
    const auto first = [&](const std::string& arguments) {  // behind the verdict of check and plan
        return lines_of(s.lockstep(arguments).out).at(arguments.starts_with("show") ? 0 : 1);
    };
    EXPECT_EQ(first("check r.toml --runtime.threads_per_rank 1"), "machine      this one; " + here + "; 1 thread a rank");
    EXPECT_EQ(first("show r.toml --runtime.threads_per_rank 3"), "# machine: this one; " + here + "; 3 threads a rank");
    EXPECT_EQ(first("plan r.toml --cluster old.toml"), "other: ; the file names no kernels, so those of this machine: " + here);
    EXPECT_EQ(
        first("check r.toml --cluster old.toml"),
        fmt::format("machine      other (old.toml); the file names no kernels, so those of this machine: {}; 4 threads a rank",
                    here));
    EXPECT_EQ(first("check r.toml --runtime.kernels reference --runtime.threads_per_rank 1"),
              "machine      this one; reference kernels; 1 thread a rank");
    EXPECT_TRUE(s.lockstep("check r.toml --json").json()["machine"]["this_machine"]);
    const nlohmann::json other =
        s.lockstep("check r.toml --json --cluster.file " + kSource + "/clusters/h100.toml").json()["machine"];
    EXPECT_FALSE(other["this_machine"]);
    EXPECT_EQ(other["kernels"], "kernels of Lockstep's module for NVIDIA's GPUs");
}

std::set<std::string> kernels_in(const std::string& program) {
    std::set<std::string> found;
    for (const char* family : {"cpu.", "reference.", "cudnn.", "cublaslt.", "device.", "gpu."}) {
        if (has(program, std::string(" ") + family) || has(program, std::string("=") + family) ||
            has(program, std::string("\"") + family))
            found.insert(family);
    }
    return found;
}

TEST(CliCatalog, AProgramHasTheKernelsOfItsMachineAlone) {
    Scratch s;
    const auto text = [&](const std::string& file) {
        const Finished f = s.lockstep("show r.toml --training.mixed_precision_param bfloat16 --cluster.file " + file);
        EXPECT_EQ(f.code, 0) << f.err;
        return f.out;
    };
    s.write("r.toml", training_recipe(2));
    const std::string h100 = kSource + "/clusters/h100.toml", stack = kSource + "/clusters/stacks/nanotron.toml";
    EXPECT_EQ(kernels_in(text(h100)), (std::set<std::string>{"cublaslt.", "gpu."}));
    EXPECT_EQ(kernels_in(text(h100 + " --training.document_mask false --training.seq_len 64 --model.dim 64")),
              (std::set<std::string>{"cudnn.", "cublaslt.", "gpu."}));
    EXPECT_EQ(kernels_in(text(h100 + " --cluster.stack " + stack)), (std::set<std::string>{"cudnn.", "cublaslt.", "device."}));
    s.write("amx.toml", processor("instruction_sets = [\"avx512\", \"avx512_bf16\", \"amx\"]\n"));
    s.write("plain.toml", processor("instruction_sets = [\"avx2\"]\n"));
    s.write("amd.toml", processor("instruction_sets = [\"avx512\", \"fast_avx512_bf16\"]\n"));
    const std::string amx = text("amx.toml"), plain = text("plain.toml"), amd = text("amd.toml");
    EXPECT_TRUE(has(amx, "cpu.matmul_amx") && has(amx, "cpu.attention_amx") && !has(amx, "qkv_rope"));
    EXPECT_TRUE(has(plain, "cpu.matmul") && !has(plain, "cpu.matmul_") && !has(plain, "_amx"));
    EXPECT_TRUE(has(amd, "cpu.matmul_bf16") && !has(amd, "_amx"));
    // The key leaves less of it.
    const Finished limited = s.lockstep(
        "show r.toml --training.mixed_precision_param bfloat16 --cluster.file amx.toml "
        "--runtime.instruction_set avx2");
    EXPECT_EQ(limited.out.substr(limited.out.find('\n')), plain.substr(plain.find('\n')));
    const Finished more = s.lockstep("check r.toml --cluster.file plain.toml --runtime.instruction_set avx512");
    EXPECT_EQ(more.code, 1);
    EXPECT_TRUE(has(more.err, "the best one of the processor in plain.toml is avx2")) << more.err;
    EXPECT_TRUE(has(more.err, "[recipe.instruction_set]")) << more.err;
}

// Training is on this machine in any case.
TEST(CliCatalog, TrainingTakesThisMachinesKernels) {
    Scratch s;
    s.write("r.toml", training_recipe(2));
    const auto norms = [&](const std::string& flags) {
        const Finished f = s.lockstep("train r.toml --job.dump_folder run" + flags);
        EXPECT_EQ(f.code, 0) << f.err;
        std::vector<double> out;
        for (const nlohmann::json& step : s.objects("run/metrics.jsonl")) out.push_back(step.at("grad_norm"));
        std::filesystem::remove_all(s.path("run"));
        return std::pair(out, f.err);
    };
    const auto [own, own_said] = norms("");
    const auto [other, said] = norms(" --cluster.file " + kSource + "/clusters/h100.toml");
    EXPECT_EQ(own, other);
    EXPECT_TRUE(has(said, "h100.toml describes devices: this runs on this machine")) << said;
    EXPECT_FALSE(has(own_said, "describes devices"));
}

// A recipe names a file beside its folder, from wherever it is read.
TEST(CliCatalog, ARecipesFileBeginsInItsFolder) {
    Scratch s;
    s.write("recipes/r.toml", training_recipe(2) + "[cluster]\nfile = \"../machines/m.toml\"\n");
    s.write("machines/m.toml", processor("chip = \"parts/c.toml\"\n"));
    s.write("machines/parts/c.toml", "[machine]\ninstruction_sets = [\"avx512\"]\n");
    const Finished f = s.lockstep("check recipes/r.toml");
    EXPECT_EQ(f.code, 0) << f.err;
    EXPECT_EQ(lines_of(f.out).at(1), "machine      other (machines/m.toml); cpu kernels for avx512; 4 threads a rank");
    const Finished planned = s.lockstep("plan recipes/r.toml");
    EXPECT_EQ(planned.code, 0) << planned.err;
    s.write("r.toml", training_recipe(2));
    const Finished none = s.lockstep("plan r.toml");
    EXPECT_EQ(none.code, 1);
    EXPECT_TRUE(has(none.err, "give --cluster FILE") && has(none.err, "[plan.no_cluster]")) << none.err;
}

}  // namespace
}  // namespace lockstep::testing
