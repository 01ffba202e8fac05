// A compile that starts from a kept prefix: the same programs, refusals as values, and what each pass changed.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <optional>

#include "base/error.h"
#include "compile/memory_report.h"
#include "ir/text.h"
#include "kernels/kernel.h"
#include "tests/compile/recipes.h"
#include "tests/equivalence/draw.h"

namespace lockstep::testing {
namespace {

using compile::Compiled;
using compile::CompileOptions;
using compile::Config;

CompileOptions options_of(bool verify = true) {
    CompileOptions options;
    options.catalog = kernels::reference_catalog();
    options.verify = verify;
    return options;
}

std::string text_of(const Compiled& compiled) {
    std::string text;
    for (const ir::Program& p : compiled.programs) text += ir::print(p);
    return text;
}

// Everything that a layout changes is as in no recipe's layout.
Config elsewhere(Config config) {
    config.parallelism = {};
    config.parallelism.data_parallel_shard_degree = 3, config.parallelism.prefetch = 2;
    config.partition = {};
    config.partition.preset = compile::PartitionPreset::Zero1;
    config.activation_checkpoint = {};
    config.training.local_batch_size = 5, config.training.global_batch_size = -1, config.training.loss_chunk_tokens = 7;
    config.cluster = {};
    return config;
}

class KeptPrefix : public ::testing::TestWithParam<NamedSettings> {};

// The prefix of one layout serves another.
TEST_P(KeptPrefix, LeadsToTheProgramsOfAWholeCompile) {
    const Config config = compile::config_of(small_recipe(GetParam().settings));
    const compile::Prefix prefix = compile::compile_prefix(elsewhere(config), options_of());
    const Compiled from_prefix = compile::or_throw(compile::compile(prefix, config, options_of(false)));
    EXPECT_EQ(text_of(from_prefix), text_of(compile::compile(config, options_of())));
}

INSTANTIATE_TEST_SUITE_P(Recipes, KeptPrefix, ::testing::ValuesIn(sample_settings()),
                         [](const auto& info) { return info.param.name; });

TEST(KeptPrefixOfRandomLayouts, LeadsToTheProgramsOfAWholeCompile) {
    for (uint64_t seed = 1; seed <= 20; ++seed) {
        const std::optional<Draw> drawn = draw(seed, seed % 2 == 0 ? Dtype::F64 : Dtype::F32, seed % 4 == 1);
        if (!drawn) continue;
        const Config config = compile::config_of(drawn->recipe);
        const compile::Prefix prefix = compile::compile_prefix(elsewhere(config), options_of());
        const Compiled from_prefix = compile::or_throw(compile::compile(prefix, config, options_of(false)));
        EXPECT_EQ(text_of(from_prefix), text_of(compile::compile(config, options_of()))) << "seed " << seed;
    }
}

TEST(KeptPrefixOfAnotherModel, IsAnInternalError) {
    Config config = compile::config_of(small_recipe());
    const compile::Prefix prefix = compile::compile_prefix(config, options_of());
    config.training.seq_len *= 2;
    EXPECT_THROW(compile::compile(prefix, config, options_of()), InternalError);
}

TEST(Refusals, OfLayoutsAreValues) {
    const Config config = compile::config_of(small_recipe());
    const compile::Prefix prefix = compile::compile_prefix(config, options_of());
    struct Case {
        const char *id, *key;
        std::function<void(Config&)> change;
    };
    const Case cases[] = {
        {"recipe.ranks", "cluster.ranks", [](Config& c) { c.cluster.ranks = 3, c.parallelism.tensor_parallel_degree = 2; }},
        {"recipe.divides", "training.seq_len", [](Config& c) { c.parallelism.tensor_parallel_degree = 3; }},
        {"recipe.heads_divide", "parallelism.tensor_parallel_degree",
         [](Config& c) { c.parallelism.tensor_parallel_degree = 8; }},
        {"recipe.split_divides", "partition.weights",
         [](Config& c) {
             c.parallelism.data_parallel_shard_degree = 4;
             c.partition.weights = {compile::Split::Over::Number, 3};
         }},
        {"recipe.too_many_microbatches", "training.global_batch_size", [](Config& c) { c.training.global_batch_size = 1 << 20; }},
        {"pipeline.too_many_stages", "parallelism.pipeline_parallel_degree",
         [](Config& c) { c.parallelism.pipeline_parallel_degree = 5; }},
        {"pipeline.rounds", "training.global_batch_size",
         [](Config& c) {
             c.parallelism.pipeline_parallel_degree = 2, c.training.global_batch_size = 5;
             c.parallelism.pipeline_parallel_schedule = "Interleaved1F1B";
         }},
        {"recipe.recompute_budget", "activation_checkpoint.budget_bytes",
         [](Config& c) {
             c.activation_checkpoint.mode = compile::RecomputeMode::Budget, c.activation_checkpoint.budget_bytes = 1;
         }},
    };
    for (const Case& c : cases) {
        Config changed = config;
        c.change(changed);
        const auto result = compile::compile(prefix, changed, options_of(false));
        const UserError* refusal = compile::refusal_of(result);
        ASSERT_TRUE(refusal) << c.id;
        EXPECT_EQ(refusal->id(), c.id);
        EXPECT_EQ(refusal->key(), c.key);
        try {  // the commands' form throws the same
            compile::compile(changed, options_of());
            ADD_FAILURE() << c.id;
        } catch (const UserError& e) {
            EXPECT_STREQ(e.what(), refusal->what());
        }
    }
}

TEST(Refusals, OfWhatDoesNotFitAreValues) {
    const Config config = compile::config_of(small_recipe());
    const compile::Prefix prefix = compile::compile_prefix(config, options_of());
    CompileOptions options = options_of();
    const int64_t needed = compile::or_throw(compile::compile(prefix, config, options)).arena_bytes();
    options.capacity_bytes = needed;
    EXPECT_FALSE(compile::refusal_of(compile::compile(prefix, config, options)));
    options.capacity_bytes = needed - 1;
    const auto result = compile::compile(prefix, config, options);
    ASSERT_TRUE(compile::refusal_of(result));
    EXPECT_EQ(compile::refusal_of(result)->id(), "check.does_not_fit");
    EXPECT_EQ(compile::refusal_of(result)->what(), fmt::format("a rank needs {} bytes and has {}", needed, needed - 1));
}

// The changes of all passes add up to the program, and each technique changes what it is for.
TEST(PassReports, SayWhatEachPassChanges) {
    Settings settings = {{"parallelism.tensor_parallel_degree", "2"},
                         {"parallelism.pipeline_parallel_degree", "2"},
                         {"training.global_batch_size", "4"},
                         {"activation_checkpoint.mode", "full"}};
    CompileOptions options = options_of();
    options.report = true;
    const Compiled compiled = compile::compile(small_recipe(settings), options);
    ASSERT_EQ(compiled.passes.size(), compile::pass_names().size());
    const auto pass = [&](const std::string& name) {
        return *std::find_if(compiled.passes.begin(), compiled.passes.end(), [&](const auto& p) { return p.name == name; });
    };
    compile::Work last;
    for (size_t i = 0; i < compiled.passes.size(); ++i) {
        EXPECT_EQ(compiled.passes[i].name, compile::pass_names()[i]);
        if (compiled.passes[i].name != "build_blocks") {
            EXPECT_EQ(compiled.passes[i].before, last) << compiled.passes[i].name;
        }
        last = compiled.passes[i].after;
    }
    EXPECT_EQ(last, compile::work_of(compiled.programs));
    double executed = 0;
    for (const compile::StageReport& r : compile::reports_of(compiled)) executed += r.flops_executed;
    EXPECT_DOUBLE_EQ(last.flops, executed);
    EXPECT_EQ(last.arena_bytes, compiled.arena_bytes());
    EXPECT_GT(pass("differentiate").after.flops, 2 * pass("differentiate").before.flops);
    EXPECT_NEAR(pass("bind_sizes").after.flops / pass("bind_sizes").before.flops, 4, 0.1);  // microbatches of one sequence
    EXPECT_LT(pass("shard").after.flops, 0.6 * pass("shard").before.flops);
    EXPECT_GT(pass("recompute").after.flops, pass("recompute").before.flops);
    EXPECT_GT(pass("recompute").after.bytes, pass("recompute").before.bytes);
    EXPECT_GT(pass("assign_stages").after.ops, pass("assign_stages").before.ops);
    EXPECT_FALSE(pass("cache_keys").changed);
    EXPECT_TRUE(pass("overlap").changed);
    EXPECT_EQ(pass("overlap").after, pass("overlap").before);
}

}  // namespace
}  // namespace lockstep::testing
