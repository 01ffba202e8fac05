// Gate and up, and queries, keys and values, as one product beside several: the same losses, norms of gradients and weights, in
// every layout that treats weights, rows or saved values in a way of its own.
#include <gtest/gtest.h>

#include <map>

#include "tests/base/plain.h"
#include "tests/equivalence/run.h"

namespace lockstep::testing {
namespace {

using SettingsByKey = std::map<std::string, std::string>;

compile::Recipe recipe(const SettingsByKey& settings) {
    compile::Recipe r = plain();
    for (const auto& [key, value] : SettingsByKey{{"model.dim", "6"},
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

// Does a product read these parameters as one?
bool has_packed(const compile::Compiled& compiled, const std::string& source) {
    for (const ir::Program& p : compiled.programs) {
        for (const ir::Routine& r : p.routines) {
            for (const ir::Tensor& t : r.tensors) {
                if (t.source == source) return true;
            }
        }
    }
    return false;
}

const SettingsByKey kLayouts[] = {
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
    {{"model.n_heads", "4"}},  // groups of two
    {{"model.n_heads", "6"}, {"parallelism.tensor_parallel_degree", "2"}, {"model.qkv_bias", "1"}},
    {{"model.n_heads", "4"}, {"parallelism.tensor_parallel_degree", "2"}, {"model.qk_norm", "1"}, {"optimizer.name", "Muon"}},
    {{"model.n_heads", "4"},
     {"parallelism.tensor_parallel_degree", "2"},
     {"parallelism.enable_async_tensor_parallel", "true"},
     {"parallelism.pipeline_parallel_degree", "2"},
     {"parallelism.pipeline_parallel_schedule", "ZBVZeroBubble"},
     {"model.n_layers", "4"},
     {"model.qkv_bias", "1"}},
    {{"model.n_heads", "4"},
     {"parallelism.data_parallel_shard_degree", "4"},
     {"activation_checkpoint.mode", "memory_budget"},
     {"activation_checkpoint.memory_budget", "0.5"},
     {"model.qk_norm", "1"},
     {"model.qkv_bias", "1"}},
};
// Tensor parallelism cuts the groups of these: their queries, keys and values stay apart.
const SettingsByKey kCutGroups[] = {
    {{"model.n_heads", "4"}, {"model.ffn_dim", "8"}, {"parallelism.tensor_parallel_degree", "4"}},
    {{"model.n_heads", "4"}, {"model.n_kv_heads", "1"}, {"parallelism.tensor_parallel_degree", "2"}, {"model.qkv_bias", "1"}},
};

void expect_equal(SettingsByKey settings, bool heads) {
    std::string text;
    for (const auto& [key, value] : settings) text += key + " = " + value + "\n";
    const compile::Recipe packed = recipe(settings);
    settings["training.pack_products"] = "false";
    const compile::Recipe apart = recipe(settings);
    const compile::Compiled as_one = compile_recipe(packed, Backend::Reference),
                            as_many = compile_recipe(apart, Backend::Reference);
    EXPECT_TRUE(has_packed(as_one, "w1+w3")) << text;
    EXPECT_EQ(has_packed(as_one, "wq+wk+wv"), heads) << text;
    EXPECT_EQ(has_packed(as_one, "bq+bk+bv"), heads && settings.contains("model.qkv_bias")) << text;
    for (const char* source : {"w1+w3", "wq+wk+wv", "bq+bk+bv"}) EXPECT_FALSE(has_packed(as_many, source)) << text;
    std::string where;
    EXPECT_LT(difference(run(packed, Backend::Reference, 3), run(apart, Backend::Reference, 3), &where), 1e-10) << text << where;
}

TEST(PackedProducts, AreTheProductsApart) {
    for (const SettingsByKey& settings : kLayouts) expect_equal(settings, true);
}

TEST(PackedProducts, OfGroupsThatAreCutStayApart) {
    for (const SettingsByKey& settings : kCutGroups) expect_equal(settings, false);
}

}  // namespace
}  // namespace lockstep::testing
