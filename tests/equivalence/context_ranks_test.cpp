// Context ranks: each has a slice of every sequence, keys and values are gathered, and parameters are split over dp_shard x cp.
// No recipe asks for them yet, so the degree is set in the configuration of random layouts.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "kernels/kernel.h"
#include "tests/compile/recipes.h"
#include "tests/equivalence/draw.h"

namespace lockstep::testing {
namespace {

using compile::Config;
using mesh::Axis;

Config with_context_ranks(const compile::Recipe& recipe, int64_t cp) {
    Config config = compile::config_of(recipe);
    config.parallelism.context_parallel_degree = cp;
    return config;
}

std::vector<std::string> sub_axes_of(const Config& config) {
    const mesh::Mesh mesh = compile::layout_of(config).mesh;
    std::vector<std::string> out;
    for (const mesh::SubAxis& s : mesh.sub_axes) {
        if (s.size > 1) out.push_back(fmt::format("{}:({}){}", mesh::name_of(s.axis), s.pre, s.size));
    }
    return out;
}

TEST(ContextRanks, AreTheInnermostOfTheRanksOverWhichParametersAreSplit) {
    Config config = with_context_ranks(small_recipe({}), 4);
    config.parallelism.data_parallel_shard_degree = 6, config.parallelism.data_parallel_replicate_degree = 2;
    config.training.local_batch_size = 1, config.training.global_batch_size = -1;
    const compile::Layout whole = compile::layout_of(config);
    EXPECT_EQ(whole.ranks, 48);
    EXPECT_EQ(whole.data_ranks, 12) << "context ranks share their sequences";
    EXPECT_EQ(whole.partition.weights, 24);
    EXPECT_EQ(sub_axes_of(config), (std::vector<std::string>{"dp_replicate:(1)2", "dp_shard:(1)6", "cp:(1)4"}));

    config.partition.weights = {compile::Split::Over::Number, 2};
    config.partition.gradients = {compile::Split::Over::Number, 8};
    config.partition.optimizer = {compile::Split::Over::World, 0};
    EXPECT_EQ(sub_axes_of(config),
              (std::vector<std::string>{"dp_replicate:(1)2", "dp_shard:(1)3", "dp_shard:(3)2", "cp:(1)2", "cp:(2)2"}));

    config.partition.gradients = {compile::Split::Over::Number, 6};  // 6 of 4 x 6 ranks are no sub-axes
    const auto refused = compile::layout_of(config, compile::dims_of(config));
    ASSERT_TRUE(compile::refusal_of(refused));
    EXPECT_EQ(compile::refusal_of(refused)->id(), "recipe.split_divides");
}

TEST(ContextRanks, TrainAsOneRank) {
    int runs = 0;
    for (uint64_t seed = 1; runs < 12; ++seed) {
        ASSERT_LT(seed, 400u) << "too few layouts have room for context ranks";
        const auto drawn = draw(seed, Dtype::F64);
        if (!drawn || drawn->compiled.layout.ranks > 4) continue;
        const int64_t cp = seed % 3 == 0 ? 3 : 2;
        const Config config = with_context_ranks(drawn->recipe, cp);
        compile::CompileOptions options;
        options.catalog = kernels::reference_catalog();
        compile::Compiled compiled;
        try {
            compiled = compile::compile(config, options);
        } catch (const UserError&) {
            continue;  // sequences that cannot be split so
        }
        ++runs;
        SCOPED_TRACE(fmt::format("seed {}, cp {}\n{}", seed, cp, drawn->recipe.toml()));
        ASSERT_EQ(compiled.layout.mesh.degree(Axis::cp), cp);
        ASSERT_EQ(refusal(compiled), "");
        constexpr int kSteps = 3;
        const compile::Recipe one = one_rank(drawn->recipe);
        std::string where;
        const double far = difference(run(one, Backend::Reference, kSteps), run(drawn->recipe, config, compiled, kSteps), &where);
        EXPECT_LT(far, 1e-10) << where;
    }
}

}  // namespace
}  // namespace lockstep::testing
