// Attention in the row of its product, where a GPU's kernels serve it: what is copied, saved and left as it is.
#include "passes/pack_attention.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "check/check.h"
#include "ir/text.h"
#include "kernels/cuda/planned.h"
#include "kernels/kernel.h"
#include "ops/rope.h"
#include "ops/verify.h"
#include "tests/compile/recipes.h"
#include "tests/passes/program_text.h"

namespace lockstep::testing {
namespace {

const Settings kBfloat16 = {{"training.mixed_precision_param", "bfloat16"}};

Settings with(Settings settings, const Settings& more) {
    settings.insert(settings.end(), more.begin(), more.end());
    return settings;
}
compile::Compiled for_h100(const Settings& settings, std::vector<std::string> skip = {}) {
    compile::CompileOptions options;
    options.catalog = kernels::cuda::planned_catalog("a test", 90);
    options.memory = compile::ComputesIn::DeviceMemory;
    options.skip = std::move(skip);
    return compile::compile(small_recipe(settings), options);
}
std::map<std::string, int> counts_of(const ir::Program& p) {
    std::map<std::string, int> out;
    for (const ir::Routine& r : p.routines) {
        for (const ir::Op& op : r.ops) ++out[op.kind];
    }
    return out;
}
int64_t bytes_of(const ir::Program& p, const ir::Routine& r, const std::set<std::string>& kinds) {
    int64_t bytes = 0;
    for (const ir::Op& op : r.ops) bytes += kinds.contains(op.kind) ? ops::bytes_moved(p.mesh, r, op) : 0;
    return bytes;
}
int64_t frame_bytes(const ir::Routine& r) {
    const int frame = r.port("frame");
    return frame < 0 ? 0 : r.ports[static_cast<size_t>(frame)].bytes;
}

TEST(PackAttention, ReadsAndWritesTheRowOfTheProduct) {
    for (const char* saves : {"none", "full", "selective"}) {
        SCOPED_TRACE(saves);
        const Settings settings = with(kBfloat16, {{"activation_checkpoint.mode", saves},
                                                   {"activation_checkpoint.selective_ac_option", "op"},
                                                   {"validation.enable", "true"},
                                                   {"training.seq_len", "4096"},
                                                   {"model.dim", "1024"},
                                                   {"model.n_heads", "8"},
                                                   {"model.n_kv_heads", "2"},
                                                   {"model.head_dim", "128"},
                                                   {"model.ffn_dim", "2816"}});
        const compile::Compiled packed = for_h100(settings), apart = for_h100(settings, {"pack_attention"});
        const ir::Program& p = packed.programs[0];
        EXPECT_FALSE(ops::verify(p));
        EXPECT_FALSE(check::prove(packed.of_ranks()));
        EXPECT_EQ(ir::parse(ir::print(p)), p);
        auto counts = counts_of(p);
        EXPECT_EQ(counts["split_qkv"], 0);
        EXPECT_EQ(counts["join_qkv"], 0);
        EXPECT_EQ(counts_of(apart.programs[0])["join_qkv"], 1);
        for (const char* name : {"layer.forward", "layer.backward"})
            EXPECT_LE(p.routine(name)->scratch_bytes, apart.programs[0].routine(name)->scratch_bytes) << name;
        // Only queries and keys are read and written; the product writes where the row is saved.
        const ir::Routine &forward = *p.routine("layer.forward"), &backward = *p.routine("layer.backward");
        const ir::Routine& copied = *apart.programs[0].routine("layer.forward");
        const auto row = static_cast<size_t>(forward.find("qkv_rot"));
        const int64_t values = ir::local_bytes(p.mesh, forward, forward.tensors[row]) /
                               forward.dims[static_cast<size_t>(forward.dim(ir::DimRole::Qkv))].size;
        EXPECT_EQ(bytes_of(p, forward, {"rope"}) + 2 * values, bytes_of(apart.programs[0], copied, {"split_qkv"}));
        const std::string again = std::string(saves) == "full" ? "rope" : "";
        EXPECT_EQ(counts_of(p)["rope"], 3 + (again.empty() ? 0 : 1)) << "forward, backward and validation; and forward again";
        if (std::string(saves) != "full") {
            EXPECT_EQ(forward.tensors[static_cast<size_t>(forward.find("qkv"))].view_of, forward.find("qkv_rot"));
            EXPECT_EQ(frame_bytes(forward), frame_bytes(copied));
        }
        EXPECT_LT(bytes_of(p, backward, {"rope", "split_qkv", "join_qkv"}),
                  bytes_of(apart.programs[0], *apart.programs[0].routine("layer.backward"), {"split_qkv", "join_qkv"}));
    }
}

TEST(PackAttention, TakesBiasesWindowsDocumentsAndTensorParallelism) {
    const Settings samples[] = {
        {{"model.qkv_bias", "1"}},
        {{"model.sliding_window", "16"}},
        {{"training.document_mask", "true"}},
        {{"parallelism.tensor_parallel_degree", "2"}},
        {{"runtime.deterministic", "false"}},
        {{"parallelism.tensor_parallel_degree", "2"}, {"parallelism.enable_async_tensor_parallel", "true"}},
        {{"parallelism.pipeline_parallel_degree", "2"},
         {"parallelism.pipeline_parallel_schedule", "ZBVZeroBubble"},
         {"model.n_layers", "4"}}};
    for (const Settings& more : samples) {
        SCOPED_TRACE(more.front().first);
        const compile::Compiled c = for_h100(with(kBfloat16, more));
        for (const ir::Program& p : c.programs) {
            EXPECT_FALSE(ops::verify(p));
            EXPECT_EQ(counts_of(p)["split_qkv"] + counts_of(p)["join_qkv"], 0);
            EXPECT_EQ(ir::parse(ir::print(p)), p);
        }
        EXPECT_FALSE(check::prove(c.of_ranks()));
    }
}

// Norms of queries and keys, groups that are cut, products that are not packed; kernels of a processor, and other software's.
TEST(PackAttention, LeavesTheRestAsItIs) {
    for (const Settings& more :
         {Settings{{"model.qk_norm", "1"}}, Settings{{"parallelism.tensor_parallel_degree", "4"}, {"model.n_heads", "4"}},
          Settings{{"training.pack_products", "false"}}, Settings{{"model.name", "gpt2"}}}) {
        SCOPED_TRACE(more.front().first);
        const Settings settings = with(kBfloat16, more);
        EXPECT_EQ(ir::print(for_h100(settings).programs[0]), ir::print(for_h100(settings, {"pack_attention"}).programs[0]));
    }
    for (const bool gives_more : {true, false}) {
        compile::CompileOptions options;
        options.catalog = gives_more ? kernels::cpu_catalog(1) : kernels::cuda::planned_catalog("a test", 90);
        options.catalog.gives_more = gives_more;
        compile::CompileOptions without = options;
        without.skip = {"pack_attention"};
        const compile::Recipe recipe = small_recipe(kBfloat16);
        EXPECT_EQ(ir::print(compile::compile(recipe, options).programs[0]),
                  ir::print(compile::compile(recipe, without).programs[0]));
    }
}

// A device that lacks one of the kernels keeps the copies.
TEST(PackAttention, AsksForAllOfItsKernels) {
    for (const char* op : {"rope", "attention", "attention_backward"}) {
        compile::CompileOptions options;
        options.catalog = kernels::cuda::planned_catalog("a test", 90);
        for (ops::KernelEntry& e : options.catalog.entries) {
            if (e.op == op && e.serves) {
                e.serves = [any = e.serves](const mesh::Mesh& m, const ir::Routine& r, const ir::Op& o) {
                    return !ops::is_packed_qkv(r, o.in[o.kind == "attention_backward" ? 1 : 0]) && any(m, r, o);
                };
            }
        }
        const ir::Program p = compile::compile(small_recipe(kBfloat16), options).programs[0];
        EXPECT_EQ(counts_of(p)["join_qkv"], 1) << op;
    }
}

}  // namespace
}  // namespace lockstep::testing
