// Gate and up as one product beside two: the same losses, norms of gradients and weights, in every layout that treats weights,
// rows or saved values in a way of its own.
#include <gtest/gtest.h>

#include <map>

#include "tests/base/plain.h"
#include "tests/equivalence/run.h"

namespace lockstep::testing {
namespace {

using Settings = std::map<std::string, std::string>;

compile::Recipe recipe(const Settings& settings) {
    compile::Recipe r = plain();
    for (const auto& [key, value] : Settings{{"model.dim", "6"},
                                             {"model.n_layers", "2"},
                                             {"model.n_heads", "2"},
                                             {"model.n_kv_heads", "2"},
                                             {"model.head_dim", "4"},
                                             {"model.ffn_dim", "6"},  // neither matrix ends with a cache line
                                             {"model.vocab_size", "20"},
                                             {"training.seq_len", "8"},
                                             {"training.local_batch_size", "1"},
                                             {"training.global_batch_size", "4"},
                                             {"training.dtype", "float64"},
                                             {"lr_scheduler.warmup_steps", "0"}})
        r.set(key, value);
    for (const auto& [key, value] : settings) r.set(key, value);
    return r;
}

bool has_packed(const compile::Compiled& compiled) {
    for (const ir::Program& p : compiled.programs) {
        for (const ir::Routine& r : p.routines) {
            for (const ir::Op& op : r.ops) {
                if (op.kind == "einsum" && r.tensors[op.out[0]].name.find("w1.w3") != std::string::npos) return true;
            }
        }
    }
    return false;
}

const Settings kLayouts[] = {
    {},
    {{"optimizer.name", "Muon"}},
    {{"activation_checkpoint.mode", "full"}},
    {{"activation_checkpoint.mode", "selective"}, {"activation_checkpoint.selective_ac_option", "op"}},
    {{"parallelism.tensor_parallel_degree", "2"}},
    {{"parallelism.tensor_parallel_degree", "2"}, {"parallelism.sequence_parallel", "false"}},
    {{"parallelism.tensor_parallel_degree", "2"},
     {"parallelism.enable_async_tensor_parallel", "true"},
     {"activation_checkpoint.mode", "full"}},
    {{"parallelism.data_parallel_shard_degree", "2"}, {"parallelism.prefetch", "1"}},
    {{"parallelism.data_parallel_shard_degree", "2"},
     {"partition.quantized_weights", "int8"},
     {"partition.quantized_gradients", "int8"},
     {"model.dim", "8"}},  // the same blocks of elements
    {{"parallelism.data_parallel_shard_degree", "2"}, {"partition.preset", "zero2"}},
    {{"parallelism.pipeline_parallel_degree", "2"},
     {"parallelism.pipeline_parallel_schedule", "ZBVZeroBubble"},
     {"model.n_layers", "4"}},
    {{"parallelism.pipeline_parallel_degree", "2"}, {"model.tie_embeddings", "1"}},
};

TEST(PackedProducts, AreTheProductsApart) {
    for (Settings settings : kLayouts) {
        std::string text;
        for (const auto& [key, value] : settings) text += key + " = " + value + "\n";
        const compile::Recipe packed = recipe(settings);
        settings["training.pack_products"] = "false";
        const compile::Recipe apart = recipe(settings);
        EXPECT_TRUE(has_packed(compile_recipe(packed, Backend::Reference))) << text;
        EXPECT_FALSE(has_packed(compile_recipe(apart, Backend::Reference))) << text;
        std::string where;
        EXPECT_LT(difference(run(packed, Backend::Reference, 3), run(apart, Backend::Reference, 3), &where), 1e-10)
            << text << where;
    }
}

}  // namespace
}  // namespace lockstep::testing
