// Catalogs in files: the shipped chips serve every program and ask for the workspace that their sources name.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "check/check.h"
#include "ir/text.h"
#include "kernels/kernel.h"
#include "passes/select_kernels.h"
#include "sim/cluster.h"
#include "tests/compile/recipes.h"
#include "tests/paths.h"

namespace lockstep::testing {
namespace {

// As other software uses it, whose kernels are listed; without a stack the kernels of Lockstep's module run on NVIDIA's devices.
sim::Cluster shipped(const std::string& name, const std::string& stack = LOCKSTEP_SOURCE_DIR "/clusters/stacks/nanotron.toml") {
    return sim::read_cluster(LOCKSTEP_SOURCE_DIR "/clusters/" + name + ".toml", "--cluster", stack);
}

compile::CompileOptions options_for(const sim::Cluster& c) {
    compile::CompileOptions options;
    options.catalog = ops::described_catalog(c.catalog_name, "here.toml", c.catalog);
    options.catalog.costs = std::make_shared<ops::CostTable>(c.costs);
    return options;
}

int64_t most_workspace(const ir::Program& p, const std::string& kind) {
    int64_t most = 0;
    for (const ir::Routine& r : p.routines) {
        for (const ir::Op& op : r.ops) most = std::max(most, op.kind == kind ? op.workspace_bytes : 0);
    }
    return most;
}

bool is_refused(const Settings& settings) {
    try {
        compile::config_of(small_recipe(settings));
        return false;
    } catch (const UserError&) {
        return true;
    }
}

TEST(Catalog, ShippedChipsServeEveryTechnique) {
    for (const char* name : {"h100", "frontier"}) {
        const compile::CompileOptions options = options_for(shipped(name));
        ASSERT_FALSE(options.catalog.entries.empty());
        size_t compiled = 0;
        for (const NamedSettings& sample : sample_settings()) {
            for (const char* type : {"float32", "bfloat16", "float16", "float64"}) {
                Settings settings = sample.settings;
                settings.emplace_back("training.mixed_precision_param", type);
                settings.emplace_back("training.dtype", std::string(type) == "float64" ? type : "float32");
                SCOPED_TRACE(fmt::format("{} {} {}", name, sample.name, type));
                if (is_refused(settings)) continue;  // a type that the sample's other keys exclude
                ++compiled;
                const compile::Compiled c = compile::compile(small_recipe(settings), options);
                EXPECT_FALSE(check::prove(c.of_ranks()));
                for (const ir::Program& p : c.programs) {
                    for (const ir::Routine& r : p.routines) {
                        for (const ir::Op& op : r.ops) EXPECT_FALSE(op.kernel.starts_with("cpu") || op.kernel.starts_with("ref"));
                    }
                }
            }
        }
        EXPECT_GT(compiled, 3 * sample_settings().size());
    }
}

// What cuDNN 9.19 answers for an H100: 12.8 MB and 269 MB; without shared keys there are no copies of their gradients.
TEST(Catalog, AttentionAsksForTheWorkspaceThatCudnnTakes) {
    const compile::CompileOptions options = options_for(shipped("h100"));
    const auto backward_bytes = [&](int heads, int kv_heads, int head_dim, int seq, int batch) {
        const compile::Recipe recipe = small_recipe({{"model.n_layers", "1"},
                                                     {"model.n_heads", std::to_string(heads)},
                                                     {"model.n_kv_heads", std::to_string(kv_heads)},
                                                     {"model.head_dim", std::to_string(head_dim)},
                                                     {"training.seq_len", std::to_string(seq)},
                                                     {"training.local_batch_size", std::to_string(batch)},
                                                     {"training.loss_chunk_tokens", "512"},
                                                     {"training.mixed_precision_param", "bfloat16"}});
        return most_workspace(compile::compile(recipe, options).programs[0], "attention_backward");
    };
    EXPECT_EQ(backward_bytes(12, 12, 64, 1024, 4), 4 * 12 * 1024 * 64 * 4 + 4 * 12 * 1024 * 4);
    EXPECT_NEAR(static_cast<double>(backward_bytes(12, 12, 64, 1024, 4)), 12.8e6, 0.05e6);
    EXPECT_NEAR(static_cast<double>(backward_bytes(32, 8, 128, 4096, 2)), 269.5e6, 0.3e6);
    EXPECT_NEAR(static_cast<double>(backward_bytes(32, 8, 128, 8192, 1)), 269.5e6, 0.3e6);
}

TEST(Catalog, ProductsHaveTheirLibrarysWorkspaceAndAttentionItsOwnRate) {
    const sim::Cluster c = shipped("h100");
    const ir::Program p =
        compile::compile(small_recipe({{"training.mixed_precision_param", "bfloat16"}}), options_for(c)).programs[0];
    for (const ir::Routine& r : p.routines) {
        for (const ir::Op& op : r.ops) {
            EXPECT_EQ(op.workspace_bytes == 32 << 20, op.kernel == "cublaslt.matmul") << op.kernel;
        }
    }
    const auto seconds = [&](const char* op, const char* kernel) {
        ops::CostKey key{op, kernel, "bf16", "", 1, {}, 989e12, 0};
        return ops::rated_s(c.costs, key) - c.costs.op_overhead_s;
    };
    const auto rate = [&](const char* op) { return c.costs.kernel_rates.at({op, ""}); };
    EXPECT_NEAR(seconds("einsum", "cublaslt.matmul"), 1 / (c.costs.product_efficiency * rate("einsum").of_products), 1e-9);
    // The stack names the generation of its kernels.
    for (const auto& [op, kernel] :
         {std::pair{"attention", "cudnn.attention"}, {"attention_backward", "cudnn.attention_backward"}}) {
        EXPECT_GT(rate(op).product, 0.25);
        EXPECT_NEAR(seconds(op, kernel), 1 / rate(op).product, 1e-9);
    }
}

TEST(Catalog, ProductsWithAnEpilogueHaveTheRateOfProducts) {
    const sim::Cluster c = shipped("h100");
    const auto seconds = [&](const char* op) {
        const double m = 8192, n = 3072, k = 768;
        return ops::rated_s(c.costs, {op, "cublaslt.matmul", "bf16", "nt", 1, {m, n, k}, 2 * m * n * k, 1e6});
    };
    for (const char* op : {"linear", "linear_gelu", "matmul_dgelu"}) EXPECT_EQ(seconds(op), seconds("einsum")) << op;
    EXPECT_NE(seconds("bias_gelu"), seconds("einsum"));
}

// What is slow on the device is saved first: the budget asks the catalog for which the program is compiled.
TEST(Catalog, TheRecomputeBudgetAsksTheSameCatalog) {
    const auto again = [](const std::string& slow, const std::set<std::string>& kinds) {
        sim::Cluster c = shipped("h100");
        for (ops::DescribedKernel& k : c.catalog) {
            if (k.kernel == slow) k.rate.product = k.rate.bandwidth = 1e-9;
            k.workspace.clear();  // 32 MiB are more than this model's activations
        }
        c.costs.kernel_rates = ops::rates_of(c.catalog);
        const ir::Program p = compile::compile(small_recipe({{"model.n_layers", "6"},
                                                             {"model.dim", "64"},
                                                             {"model.ffn_dim", "160"},
                                                             {"training.seq_len", "64"},
                                                             {"training.mixed_precision_param", "float32"},
                                                             {"activation_checkpoint.mode", "memory_budget"},
                                                             {"activation_checkpoint.memory_budget", "0.0"}}),
                                               options_for(c))
                                  .programs[0];
        int64_t count = 0;
        for (const ir::Call& call : p.entry(ir::EntryKind::Train)->calls) {
            for (const ir::Op& op : p.routines[call.routine].ops)
                count += op.attrs.contains("recomputed") && kinds.contains(op.kind);
        }
        return count;
    };
    EXPECT_LT(again("device.norm", {"rmsnorm", "add_rmsnorm"}), again("cublaslt.matmul", {"rmsnorm", "add_rmsnorm"}));
    EXPECT_LT(again("cublaslt.matmul", {"einsum", "addmm"}), again("device.norm", {"einsum", "addmm"}));
}

TEST(Catalog, WhatNoKernelServesIsRefusedWithTheFile) {
    sim::Cluster c = shipped("h100");
    std::erase_if(c.catalog, [](const ops::DescribedKernel& k) { return k.kernel == "device.embedding_backward"; });
    try {
        compile::compile(small_recipe(), options_for(c));
        FAIL();
    } catch (const UserError& e) {
        EXPECT_EQ(e.id(), "catalog.no_kernel");
        EXPECT_NE(std::string(e.what()).find("here.toml: none of the kernels of h100 serves scatter on f32"), std::string::npos)
            << e.what();
    }
}

// The kernels of the module: in a program where no stack is asked for, with rates of their own on top of those of their ops.
TEST(Catalog, TheModulesKernelsHaveTheirOwnRates) {
    const std::string base =
        "[machine]\ndevices = true\n[rates]\nbytes_per_s = [1e12]\nbandwidth_efficiency = 0.5\n[rates.flops_per_s]\nf32 = "
        "[1e12]\n"
        "[host]\nlaunch_s = 1e-3\n[module]\nname = \"cuda\"\nlaunch_s = 2e-6\n"
        "[[module.ops]]\nop = \"rope\"\nkernel = \"gpu.rope\"\nbandwidth_efficiency = 0.25\n"
        "[[ops]]\nops = [\"rope\", \"add\"]\ntraffic = 2\n";
    const sim::Cluster c = sim::parse_cluster(base, "own.toml");
    const auto seconds = [](const sim::Cluster& of, const char* op, const char* kernel) {
        return ops::rated_s(of.costs, {op, kernel, "f32", "", 1, {}, 0, 1e12});
    };
    EXPECT_TRUE(c.runs_module());
    EXPECT_NEAR(seconds(c, "rope", "gpu.rope"), 2 / 0.25, 1e-9);
    EXPECT_NEAR(seconds(c, "rope", "other.rope"), 2 / 0.5, 1e-9);
    EXPECT_NEAR(seconds(c, "add", "gpu.add"), 2 / 0.5, 1e-9);
    EXPECT_NEAR(seconds(c, "scale", "gpu.scale"), 1 / 0.5, 1e-9);
    EXPECT_EQ(c.host.launch_s, 2e-6);
    const sim::Cluster other = sim::parse_cluster(base + "[stack]\nname = \"s\"\n", "own.toml");
    EXPECT_FALSE(other.runs_module());
    EXPECT_NEAR(seconds(other, "rope", "gpu.rope"), 2 / 0.5, 1e-9);
    EXPECT_EQ(other.host.launch_s, 1e-3);
}

TEST(Catalog, PrintsAndParses) {
    for (const auto& [name, stack] :
         {std::pair{"h100", ""}, {"h100", LOCKSTEP_SOURCE_DIR "/clusters/stacks/nanotron.toml"}, {"frontier", ""}}) {
        const std::string text = sim::print(shipped(name, stack));
        EXPECT_EQ(sim::print(sim::parse_cluster(text, "here.toml")), text);
        EXPECT_NE(text.find("only_grouped = true"), std::string::npos);
    }
    sim::Cluster c;
    c.costs.flops_per_s = {{"f32", {1e9}}}, c.costs.bytes_per_s = {1e9};
    c.instruction_sets = InstructionSets{Isa::avx512, true, false, true, true};
    const sim::Cluster again = sim::parse_cluster(sim::print(c), "here.toml");
    EXPECT_EQ(again.instruction_sets, c.instruction_sets);
    EXPECT_EQ(words_of(*again.instruction_sets), (std::vector<std::string>{"avx512", "avx512_bf16", "amx", "onednn"}));
}

// Every instruction set's table is compiled in: kernels can be listed and programs proved for processors that are not here.
TEST(Catalog, CpuKernelsAreListedForAnyProcessor) {
    const Settings settings = {{"training.mixed_precision_param", "bfloat16"}, {"training.seq_len", "128"}, {"model.dim", "64"}};
    std::set<std::string> programs;
    for (const InstructionSets& of : {InstructionSets{Isa::avx512, true, false, true, false},
                                      InstructionSets{Isa::avx512, true, true}, InstructionSets{Isa::avx2}}) {
        compile::CompileOptions options;
        options.catalog = kernels::cpu_catalog(2, of);
        const compile::Compiled c = compile::compile(small_recipe(settings), options);
        EXPECT_FALSE(check::prove(c.of_ranks()));
        EXPECT_GT(most_workspace(c.programs[0], "einsum"), 0);
        programs.insert(ir::print(c.programs[0]));
    }
    EXPECT_EQ(programs.size(), 3u);
}

}  // namespace
}  // namespace lockstep::testing
