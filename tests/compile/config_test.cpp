// The typed configuration: every key that acts has a field of its own, and every word its enum.
#include "compile/config.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "compile/compile.h"
#include "compile/key_field.h"
#include "kernels/cuda/planned.h"
#include "kernels/kernel.h"
#include "tests/compile/recipes.h"

namespace lockstep::testing {
namespace {

using compile::Config;
using compile::RecipeKey;
using compile::Value;

Config with(const std::string& key, const std::string& value) {
    compile::Recipe recipe;
    recipe.set(key, value);
    Config config = compile::values_of(recipe);
    config.origins.clear();
    return config;
}

// Another value that the key may have, as a flag would give it.
std::string other_value(const RecipeKey& k) {
    const Value& v = k.default_value;
    if (const auto* b = std::get_if<bool>(&v)) return *b ? "false" : "true";
    if (const auto* i = std::get_if<int64_t>(&v)) return std::to_string(*i == 3 ? 4 : 3);
    if (std::holds_alternative<double>(v)) {
        for (const double x : {0.25, 0.5, 2.0}) {
            if (k.allowed.objection(x).empty() && Value(x) != v) return fmt::format("{}", x);
        }
    }
    if (std::holds_alternative<std::vector<double>>(v)) return "1.5";
    for (const std::string& word : k.allowed.words()) {
        if (!word.empty() && Value(word) != v) return word;
    }
    if (k.name == "training.max_time") return "1:00:00";
    return "another";
}

TEST(ConfigKeys, ActOnAFieldOfTheirOwn) {
    const Config defaults = compile::values_of(compile::Recipe());
    EXPECT_EQ(defaults, Config());
    std::vector<std::pair<std::string, Config>> changed;
    for (const RecipeKey& k : compile::recipe_keys()) {
        EXPECT_EQ(k.put != nullptr, k.status == compile::KeyStatus::Acts) << k.name;
        if (!k.put) continue;
        changed.emplace_back(k.name, with(k.name, other_value(k)));
        EXPECT_NE(changed.back().second, defaults) << k.name << " = " << other_value(k);
    }
    // Two keys that change one field change a configuration alike where the other has been changed already.
    for (const RecipeKey& k : compile::recipe_keys()) {
        if (!k.put) continue;
        for (auto [name, config] : changed) {
            if (name == k.name) continue;
            const Config before = config;
            k.put(config, k.default_value);
            EXPECT_EQ(config, before) << k.name << " overwrites the field of " << name;
        }
    }
    EXPECT_GT(changed.size(), 90u);
}

template <class Get>
void expect_words(const std::string& key, Get get) {
    const RecipeKey* k = compile::find_key(key);
    ASSERT_TRUE(k) << key;
    ASSERT_FALSE(k->allowed.words().empty()) << key;
    for (const std::string& word : k->allowed.words()) EXPECT_EQ(compile::word_of(get(with(key, word))), word) << key;
}

TEST(ConfigKeys, ReadEachWordAsItsEnum) {
    expect_words("optimizer.name", [](const Config& c) { return c.optimizer.name; });
    expect_words("optimizer.muon_adjust_lr_fn", [](const Config& c) { return c.optimizer.muon_adjust_lr_fn; });
    expect_words("lr_scheduler.decay_type", [](const Config& c) { return c.lr_scheduler.decay_type; });
    expect_words("training.dtype", [](const Config& c) { return c.training.dtype; });
    expect_words("training.mixed_precision_reduce", [](const Config& c) { return c.training.mixed_precision_reduce; });
    expect_words("parallelism.fsdp_reshard_after_forward",
                 [](const Config& c) { return c.parallelism.fsdp_reshard_after_forward; });
    expect_words("partition.preset", [](const Config& c) { return c.partition.preset; });
    expect_words("partition.reduce_gradients", [](const Config& c) { return c.partition.reduce_gradients; });
    expect_words("checkpoint.async_mode", [](const Config& c) { return c.checkpoint.async_mode; });
    expect_words("checkpoint.exclude_from_loading", [](const Config& c) { return c.checkpoint.exclude_from_loading.at(0); });
    expect_words("activation_checkpoint.mode", [](const Config& c) { return c.activation_checkpoint.mode; });
    expect_words("runtime.kernels", [](const Config& c) { return c.runtime.kernels; });
    expect_words("runtime.instruction_set", [](const Config& c) { return c.runtime.instruction_set; });
    expect_words("runtime.comm_thread", [](const Config& c) { return c.runtime.comm_thread; });
}

TEST(ConfigKeys, ReadFormsThatAreNoWords) {
    EXPECT_EQ(with("training.max_time", "1:30:00").training.max_time.seconds, 5400);
    EXPECT_EQ(with("activation_checkpoint.selective_ac_option", "op").activation_checkpoint.selective_ac_option.every_nth, 0);
    EXPECT_EQ(with("activation_checkpoint.selective_ac_option", "3").activation_checkpoint.selective_ac_option.every_nth, 3);
    EXPECT_EQ(with("partition.weights", "world").partition.weights, (compile::Split{compile::Split::Over::World, 0}));
    EXPECT_EQ(with("partition.weights", "4").partition.weights, (compile::Split{compile::Split::Over::Number, 4}));
    EXPECT_EQ(with("training.mixed_precision_norm", "float64").training.mixed_precision_norm, Dtype::F64);
    EXPECT_EQ(with("training.mixed_precision_param", "").training.mixed_precision_param, std::nullopt);
    EXPECT_EQ(with("training.dataset", "c4").training.dataset, compile::Dataset::Prepared);
    EXPECT_EQ(with("training.dataset", "synthetic").training.dataset, compile::Dataset::Synthetic);
    EXPECT_EQ(with("runtime.disabled_kernels", "qkv_rope,swiglu").runtime.disabled_kernels.names,
              (std::vector<std::string>{"qkv_rope", "swiglu"}));
}

TEST(ConfigKeys, ChunksOfTheLossAreLongerOnAGpu) {
    const ops::KernelCatalog of_gpu = kernels::cuda::planned_catalog("h100.toml", 90);
    EXPECT_EQ(compile::loss_chunk_tokens(with("training.loss_chunk_tokens", "0"), kernels::cpu_catalog(1)), 512);
    EXPECT_EQ(compile::loss_chunk_tokens(with("training.loss_chunk_tokens", "0"), of_gpu), 8192);
    EXPECT_EQ(compile::loss_chunk_tokens(with("training.loss_chunk_tokens", "7"), of_gpu), 7);
}

TEST(ConfigKeys, SayWhereTheyWereSet) {
    const Config config = compile::values_of(compile::Recipe::from_text("[training]\nsteps = 3\n", "run.toml"));
    EXPECT_EQ(config.where("training.steps"), "run.toml:2: ");
    EXPECT_EQ(config.where("training.seq_len"), "");
}

}  // namespace
}  // namespace lockstep::testing
