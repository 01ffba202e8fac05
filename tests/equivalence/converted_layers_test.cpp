// Filters of model.converters divide blocks of layers. What is divided trains as the undivided model does, if no product is
// converted, and either goes on from the other's checkpoint.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/kernel.h"
#include "runtime/load_states.h"
#include "runtime/saver.h"
#include "tests/base/scratch_folder.h"
#include "tests/compile/recipes.h"
#include "tests/equivalence/draw.h"

namespace lockstep::testing {
namespace {

compile::Compiled compiled_of(const compile::Config& config) {
    compile::CompileOptions options;
    options.catalog = kernels::reference_catalog();
    options.skip = {"float8_products"};
    return compile::compile(config, options);
}

// The first layer is one block, the last one another.
compile::Config divided(const compile::Recipe& recipe) {
    compile::Config config = compile::config_of(recipe);
    config.model.converters = {compile::Converter::Float8};
    const int64_t layers = config.model.size("n_layers");
    config.linear_float8.filter_fqns = {"layers.0.", fmt::format("layers.{}.attention.wk", layers - 1)};
    return config;
}

// The sample in float64, with sides of 16 and more, and three layers at least. Nothing: it rounds to types of its own.
std::optional<compile::Recipe> whole_recipe(const Settings& sample) {
    Settings settings = {{"training.dtype", "float64"}, {"model.n_layers", "3"}};
    for (const auto& [key, value] : sample) {
        const bool rounds = key.starts_with("training.mixed_precision") || key == "training.fp32_residual_connection" ||
                            (key == "training.dtype" && value != "float64") || value == "zeropp";
        if (rounds) return std::nullopt;
        settings.emplace_back(key, value);
    }
    for (const auto& [key, value] : Settings{{"model.dim", "32"}, {"model.head_dim", "8"}, {"model.ffn_dim", "48"}})
        settings.emplace_back(key, value);
    return small_recipe(settings);
}

TEST(ConvertedLayers, TrainAsOneBlockDoes) {
    int runs = 0, in_pipelines = 0;
    std::vector<NamedSettings> samples = sample_settings();
    samples.push_back({"recompute_of_all_layers_of_a_block", {{"activation_checkpoint.mode", "selective"}}});
    for (const NamedSettings& sample : samples) {
        const std::optional<compile::Recipe> recipe = whole_recipe(sample.settings);
        if (!recipe) continue;
        SCOPED_TRACE(sample.name);
        const compile::Config config = divided(*recipe);
        const compile::Compiled compiled = compiled_of(config);
        ASSERT_EQ(refusal(compiled), "");
        std::set<std::string> blocks;
        for (const ir::Program& p : compiled.programs) {
            for (const ir::Block& b : p.blocks) blocks.insert(b.name);
        }
        EXPECT_EQ(blocks.size(), 5u);
        ++runs, in_pipelines += compiled.programs.size() > 1;
        constexpr int kSteps = 2;
        const Outcome one = run(*recipe, Backend::Reference, kSteps);
        std::string where;
        EXPECT_LT(difference(one, run(*recipe, config, compiled, kSteps), &where), 1e-10) << where;
    }
    EXPECT_GE(runs, 15);
    EXPECT_GE(in_pipelines, 3);
}

struct Half {
    compile::Config config;
    compile::Compiled compiled;
};

Outcome stop_and_go_on(const compile::Recipe& recipe, const Half& first, const Half& second, const std::string& root) {
    constexpr int kBefore = 2, kAfter = 2;
    const data::SyntheticSource data = synthetic_data(recipe, first.compiled);
    Outcome out;
    {
        runtime::Trainer trainer(first.config, first.compiled, data);
        start(trainer, recipe);
        go_on(trainer, kBefore, out);
        runtime::Saver saver(trainer, recipe, root);
        saver.save(runtime::SaveContents::All);
        saver.finish();
    }
    runtime::Trainer trainer(second.config, second.compiled, data);
    runtime::load(trainer, checkpoint::folder_of(root, kBefore));
    go_on(trainer, kAfter, out);
    return out;
}

TEST(ConvertedLayers, GoOnFromTheCheckpointOfOneBlock) {
    for (const char* model : {"llama3", "gpt2"}) {
        const compile::Recipe recipe = *whole_recipe({{"model.name", model},
                                                      {"parallelism.data_parallel_shard_degree", "2"},
                                                      {"parallelism.tensor_parallel_degree", "2"},
                                                      {"training.global_batch_size", "4"},
                                                      {"checkpoint.enable", "true"}});
        const compile::Config config = compile::config_of(recipe), filtered = divided(recipe);
        const Half one{config, compiled_of(config)}, several{filtered, compiled_of(filtered)};
        const ScratchFolder scratch;
        const Outcome unbroken = run(recipe, one.compiled, 4);
        std::string where;
        EXPECT_LT(difference(unbroken, stop_and_go_on(recipe, one, several, scratch.path("a")), &where), 1e-10) << where;
        EXPECT_LT(difference(unbroken, stop_and_go_on(recipe, several, one, scratch.path("b")), &where), 1e-10) << where;
    }
}

}  // namespace
}  // namespace lockstep::testing
