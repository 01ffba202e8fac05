// How many bytes the ops of a layer read and write in a training step on a GPU, counted from the program. T: tokens of a rank.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "compile/compile.h"
#include "compile/work.h"
#include "kernels/cuda/planned.h"
#include "ops/cost.h"
#include "tests/compile/recipes.h"

namespace lockstep::testing {
namespace {

struct StepOf {
    static constexpr int64_t tokens = 2 * 512, hidden = 256, ffn = 1024, layers = 3, microbatches = 3;
};

compile::Compiled llama_on_gpu(const Settings& more) {
    Settings settings = {{"model.name", "llama3"},
                         {"model.dim", "256"},
                         {"model.n_layers", "3"},
                         {"model.n_heads", "4"},
                         {"model.n_kv_heads", "2"},
                         {"model.ffn_dim", "1024"},
                         {"model.vocab_size", "512"},
                         {"training.dataset", "synthetic"},
                         {"training.mixed_precision_param", "bfloat16"},
                         {"training.seq_len", "512"},
                         {"training.local_batch_size", "2"},
                         {"training.global_batch_size", "6"},
                         {"runtime.kernels", "cuda"}};
    settings.insert(settings.end(), more.begin(), more.end());
    compile::Recipe recipe;
    for (const auto& [key, value] : settings) recipe.set(key, value);
    compile::CompileOptions options;
    options.catalog = kernels::cuda::planned_catalog("", 90);
    options.memory = compile::ComputesIn::DeviceMemory;
    return compile::compile(recipe, options);
}

// Of a step, by kind of op, in layers.
std::map<std::string, double> bytes_of_kinds(const ir::Program& p) {
    std::map<std::string, double> out;
    for (const ir::Call& c : p.entry(ir::EntryKind::Train)->calls) {
        const ir::Routine& r = p.routines[static_cast<size_t>(c.routine)];
        if (r.block != "layer") continue;
        for (const ir::Op& op : r.ops) out[op.kind] += static_cast<double>(ops::bytes_moved(p.mesh, r, op));
    }
    return out;
}

double sum_of_kinds(const std::map<std::string, double>& bytes, const std::string& part) {
    double out = 0;
    for (const auto& [kind, n] : bytes) out += kind.find(part) != std::string::npos ? n : 0;
    return out;
}

// Norms: 24 T hidden, as products add the residual, and weights, their gradients and a float a row; SwiGLU: 16 T ffn.
TEST(StepBytes, OfNormsAndSwiGlu) {
    const compile::Compiled c = llama_on_gpu({{"activation_checkpoint.mode", "none"}});
    const std::map<std::string, double> bytes = bytes_of_kinds(c.programs[0]);
    const double layers = StepOf::layers * StepOf::microbatches;
    EXPECT_DOUBLE_EQ(sum_of_kinds(bytes, "swiglu"), 16.0 * StepOf::tokens * StepOf::ffn * layers);
    const double norms = sum_of_kinds(bytes, "rmsnorm"), rows = 4.0 * StepOf::tokens * 4,
                 weights = StepOf::hidden * (4 * 2 + 2 * 4.0);
    EXPECT_DOUBLE_EQ(norms, (24.0 * StepOf::tokens * StepOf::hidden + rows + weights) * layers);
}

// Recomputed SwiGLU: forward 6, backward 12 with the result that its own product needs again.
TEST(StepBytes, OfSwiGluThatIsComputedAgain) {
    for (const char* mode : {"full", "selective"}) {
        const compile::Compiled c =
            llama_on_gpu({{"activation_checkpoint.mode", mode}, {"activation_checkpoint.selective_ac_option", "op"}});
        const std::map<std::string, double> bytes = bytes_of_kinds(c.programs[0]);
        EXPECT_DOUBLE_EQ(sum_of_kinds(bytes, "swiglu"),
                         18.0 * StepOf::tokens * StepOf::ffn * StepOf::layers * StepOf::microbatches)
            << mode;
    }
}

int casts_of_weights(const compile::Compiled& c) {
    int out = 0;
    for (const ir::Program& p : c.programs) {
        for (const ir::Call& call : p.entry(ir::EntryKind::Train)->calls) {
            const ir::Routine& r = p.routines[static_cast<size_t>(call.routine)];
            const bool of_unit = r.kind == ir::RoutineKind::Gather || r.kind == ir::RoutineKind::Update;
            for (const ir::Op& op : r.ops) out += of_unit && op.kind == ir::kCast ? 1 : 0;
        }
    }
    return out;
}

// The optimizer writes the weights that products read: no step casts them.
TEST(StepBytes, NoCastOfAWeight) {
    EXPECT_EQ(casts_of_weights(llama_on_gpu({})), 0);
    const Settings split = {{"parallelism.data_parallel_shard_degree", "2"}, {"training.global_batch_size", "12"}};
    Settings kept = split, cast = {{"training.mixed_precision_weights", "cast"}};
    kept.emplace_back("training.mixed_precision_weights", "kept");
    EXPECT_EQ(casts_of_weights(llama_on_gpu(kept)), 0);
    EXPECT_GE(casts_of_weights(llama_on_gpu(cast)), 2 * StepOf::layers * StepOf::microbatches);
    EXPECT_GE(casts_of_weights(llama_on_gpu(split)), 2 * StepOf::layers * StepOf::microbatches);
}

// runtime.cuda_graph reads words and true and false.
TEST(StepGraph, IsForShortSteps) {
    const compile::Compiled c = llama_on_gpu({});
    const auto is_graph = [&](const std::string& toml) {
        return compile::runs_as_graph(compile::config_of(compile::Recipe::from_text(toml, "r.toml")), c.programs);
    };
    EXPECT_TRUE(is_graph("[runtime]\nkernels = \"cuda\"\ncuda_graph = \"auto\"\n"));
    EXPECT_TRUE(is_graph("[runtime]\nkernels = \"cuda\"\ncuda_graph = true\n"));
    EXPECT_FALSE(is_graph("[runtime]\nkernels = \"cuda\"\ncuda_graph = false\n"));
    compile::Compiled long_step = c;
    for (int i = 0; i < 20; ++i) {
        if (compile::work_of(long_step.programs).flops >= 5e13) break;
        for (ir::Entry& e : long_step.programs[0].entries) {
            const std::vector<ir::Call> again = e.calls;
            e.calls.insert(e.calls.end(), again.begin(), again.end());
        }
    }
    const compile::Recipe on_gpu = compile::Recipe::from_text("[runtime]\nkernels = \"cuda\"\n", "r.toml"), on_cpu;
    EXPECT_TRUE(compile::runs_as_graph(compile::config_of(on_gpu), c.programs));
    EXPECT_FALSE(compile::runs_as_graph(compile::config_of(on_gpu), long_step.programs));
    EXPECT_FALSE(compile::runs_as_graph(compile::config_of(on_cpu), c.programs));
}

}  // namespace
}  // namespace lockstep::testing
