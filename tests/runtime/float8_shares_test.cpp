// What casts to float8 lose is counted alike in every layout, once for each element.
#include "runtime/float8_shares.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "tests/compile/recipes.h"
#include "tests/equivalence/run.h"

namespace lockstep::testing {
namespace {

using Key = std::pair<std::string, std::string>;

compile::Recipe converted(const Settings& more) {
    compile::Recipe r = small_recipe({{"model.dim", "16"},
                                      {"model.head_dim", "16"},
                                      {"model.n_heads", "4"},
                                      {"model.n_kv_heads", "2"},
                                      {"model.ffn_dim", "64"},
                                      {"model.n_layers", "2"},
                                      {"training.dtype", "float64"},
                                      {"training.seq_len", "8"},
                                      {"training.global_batch_size", "4"},
                                      {"model.converters", "quantize.linear.float8"},
                                      {"quantize.scale_sequences", "1"},
                                      {"quantize.scale_context_blocks", "1"},
                                      {"parallelism.context_parallel_load_balancer", "none"}});
    for (const auto& [key, value] : more) r.set(key, value);
    return r;
}

// Of one step. `edit` changes the weights before it.
runtime::Float8Shares counted(const Settings& more, const std::function<void(runtime::GlobalTensors&)>& edit = {}) {
    const compile::Recipe r = converted(more);
    const compile::Compiled compiled = compile_recipe(r, Backend::Reference);
    const data::SyntheticSource source = synthetic_data(r, compiled);
    runtime::Trainer trainer(compile::config_of(r), compiled, source);
    start(trainer, r);
    if (edit) {
        runtime::GlobalTensors weights = trainer.state(runtime::saved_as("{}"));
        edit(weights);
        trainer.fill_weights(values_in(weights));
    }
    runtime::Float8Counter counter(trainer.ranks());
    counter.watch(true);
    trainer.step();
    counter.watch(false);
    const runtime::Float8Shares shares = counter.take();
    trainer.step();
    EXPECT_TRUE(counter.take().empty()) << "nobody looks on";
    return shares;
}

TEST(Float8Shares, AreOfEachLayerAndOperand) {
    const runtime::Float8Shares shares = counted({{"training.local_batch_size", "4"}});
    constexpr int64_t kTokens = 4 * 8;
    for (const char* layer : {"layers.0.", "layers.1."}) {
        const auto of = [&](const char* module, const char* operand) {
            return shares.at({std::string(layer) + module, operand});
        };
        EXPECT_EQ(of("attention.wq+wk+wv", "input").elements, kTokens * 16);
        EXPECT_EQ(of("attention.wq+wk+wv", "weight").elements, (4 + 2 + 2) * 16 * 16);
        EXPECT_EQ(of("attention.wq+wk+wv", "grad_output").elements, kTokens * (4 + 2 + 2) * 16);
        EXPECT_EQ(of("attention.wo", "input").elements, kTokens * 4 * 16);
        EXPECT_EQ(of("feed_forward.w1+w3", "weight").elements, 2 * 64 * 16);
        EXPECT_EQ(of("feed_forward.w2", "grad_output").elements, kTokens * 16);
        EXPECT_GT(of("feed_forward.w2", "input").amax, 0);
    }
    EXPECT_EQ(shares.size(), 2u * 4 * 3);
}

TEST(Float8Shares, AreTheSameInEveryLayout) {
    const Settings gathers = {{"quantize.linear.float8.enable_fsdp_float8_all_gather", "true"}};
    for (const char* recipe : {"tensorwise", "rowwise"}) {
        const Settings all = {{"training.local_batch_size", "4"}, {"quantize.linear.float8.recipe_name", recipe}};
        const runtime::Float8Shares one = counted(all);
        std::vector<Settings> layouts = {{{"parallelism.data_parallel_shard_degree", "2"}, {"training.local_batch_size", "1"}},
                                         {{"parallelism.tensor_parallel_degree", "2"}, {"training.local_batch_size", "2"}},
                                         {{"parallelism.tensor_parallel_degree", "4"}, {"training.local_batch_size", "2"}},
                                         {{"parallelism.tensor_parallel_degree", "2"},
                                          {"parallelism.enable_async_tensor_parallel", "true"},
                                          {"training.local_batch_size", "1"}},
                                         {{"parallelism.pipeline_parallel_degree", "2"},
                                          {"parallelism.pipeline_parallel_microbatch_size", "1"},
                                          {"training.local_batch_size", "4"}},
                                         {{"parallelism.context_parallel_degree", "2"}, {"training.local_batch_size", "2"}},
                                         {{"activation_checkpoint.mode", "full"}, {"training.local_batch_size", "2"}},
                                         {{"training.pack_products", "true"},
                                          {"parallelism.data_parallel_replicate_degree", "2"},
                                          {"training.local_batch_size", "2"}}};
        if (std::string(recipe) == "tensorwise") {
            layouts.push_back({{"parallelism.data_parallel_shard_degree", "2"}, {"training.local_batch_size", "2"}, gathers[0]});
            layouts.push_back({{"parallelism.data_parallel_shard_degree", "2"},
                               {"parallelism.tensor_parallel_degree", "2"},
                               {"partition.preset", "zero1"},
                               {"training.local_batch_size", "2"},
                               gathers[0]});
        }
        for (size_t i = 0; i < layouts.size(); ++i) {
            Settings layout = all;
            layout.insert(layout.end(), layouts[i].begin(), layouts[i].end());
            const runtime::Float8Shares many = counted(layout);
            EXPECT_EQ(many.size(), one.size()) << recipe << i;
            for (const auto& [at, s] : one) {
                const auto found = many.find(at);
                ASSERT_NE(found, many.end()) << recipe << i << ": " << at.first << " " << at.second;
                EXPECT_EQ(found->second.elements, s.elements) << recipe << i << ": " << at.first << " " << at.second;
                EXPECT_EQ(found->second.flushed, s.flushed) << recipe << i << ": " << at.first << " " << at.second;
                EXPECT_NEAR(found->second.amax, s.amax, 1e-9 * s.amax) << recipe << i << ": " << at.first << " " << at.second;
            }
        }
    }
}

// One weight is 1e7 times larger than the others.
TEST(Float8Shares, ValuesFarBelowTheLargestAreFlushed) {
    for (const char* gathers : {"false", "true"}) {
        const runtime::Float8Shares shares =
            counted({{"training.local_batch_size", "4"}, {"quantize.linear.float8.enable_fsdp_float8_all_gather", gathers}},
                    [](runtime::GlobalTensors& weights) {
                        for (auto& [name, t] : weights) {
                            if (name.find("layers.1.mlp.down_proj") != std::string::npos) t[5] = 1e7;
                        }
                    });
        const runtime::Float8Share &hit = shares.at({"layers.1.feed_forward.w2", "weight"}),
                                   &other = shares.at({"layers.0.feed_forward.w2", "weight"});
        EXPECT_EQ(hit.amax, 1e7);
        EXPECT_EQ(hit.flushed, hit.elements - 1);
        EXPECT_EQ(hit.clipped, 0);
        EXPECT_EQ(other.flushed, 0);
        EXPECT_LT(other.amax, 10);
    }
}

}  // namespace
}  // namespace lockstep::testing
