// [partition] by levels of the machine: over how many data ranks each state is split, and what it then needs.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include "compile/compile.h"
#include "compile/layout.h"
#include "planning/topology.h"
#include "sim/cluster.h"
#include "tests/compile/recipes.h"
#include "tests/paths.h"

namespace lockstep::testing {
namespace {

struct Splits {
    int64_t weights, gradients, optimizer, secondary = 0;
    bool operator==(const Splits&) const = default;
    friend void PrintTo(const Splits& s, std::ostream* out) {
        *out << s.weights << " " << s.gradients << " " << s.optimizer << " " << s.secondary;
    }
};

Splits splits_of(const Settings& settings) {
    Settings all = {{"model.n_heads", "8"}, {"cluster.ranks_per_package", "2"}, {"cluster.ranks_per_node", "8"}};
    all.insert(all.end(), settings.begin(), settings.end());
    const compile::Config config = compile::config_of(small_recipe(all));
    const passes::PartitionOptions p = compile::or_throw(compile::layout_of(config, compile::dims_of(config))).partition;
    return {p.weights, p.gradients, p.states, p.secondary};
}

const char *const kShardDegree = "parallelism.data_parallel_shard_degree",
                  *const kReplicateDegree = "parallelism.data_parallel_replicate_degree",
                  *const kTpDegree = "parallelism.tensor_parallel_degree", *const kPreset = "partition.preset";

TEST(Levels, PresetsAreSplitsByLevel) {
    const std::vector<std::pair<const char*, Splits>> of_32 = {
        {"none", {1, 1, 1}},      {"ddp", {1, 1, 1}},         {"zero1", {1, 1, 16}},  {"zero2", {1, 16, 16}},
        {"zero3", {16, 16, 16}},  {"default", {16, 16, 16}},  {"hsdp", {16, 16, 16}}, {"mics", {8, 8, 8}},
        {"hpz", {16, 16, 16, 8}}, {"three_level", {2, 8, 32}}};
    for (const auto& [preset, splits] : of_32)
        EXPECT_EQ(splits_of({{kShardDegree, "16"}, {kReplicateDegree, "2"}, {kPreset, preset}}), splits) << preset;
}

// A level's data ranks are its ranks over the tensor-parallel ones, and no more than there are.
TEST(Levels, CountDataRanks) {
    EXPECT_EQ(splits_of({{kShardDegree, "8"}, {kTpDegree, "2"}, {kPreset, "three_level"}}), (Splits{1, 4, 8}));
    EXPECT_EQ(splits_of({{kShardDegree, "4"}, {kPreset, "mics"}}), (Splits{4, 4, 4}));
    EXPECT_EQ(splits_of({{kShardDegree, "4"}, {"parallelism.pipeline_parallel_degree", "2"}, {kPreset, "three_level"}}),
              (Splits{2, 4, 4}));
    EXPECT_EQ(splits_of({{kShardDegree, "2"},
                         {kReplicateDegree, "8"},
                         {"partition.weights", "none"},
                         {"partition.gradients", "node"},
                         {"partition.optimizer", "world"}}),
              (Splits{1, 8, 16}));
    // On one node the copy would be what it is a copy of.
    EXPECT_EQ(splits_of({{kShardDegree, "8"}, {kReplicateDegree, "2"}, {kPreset, "hpz"}}), (Splits{8, 8, 8}));
    EXPECT_EQ(splits_of({{kShardDegree, "16"}, {"partition.secondary_weights", "package"}}), (Splits{16, 16, 16, 2}));
    // One's own level overrides the preset's; ranks_per_host stands for a node that is left open; one host has all ranks.
    EXPECT_EQ(splits_of({{kShardDegree, "16"}, {kPreset, "three_level"}, {"partition.weights", "none"}}), (Splits{1, 8, 16}));
    EXPECT_EQ(
        splits_of({{kShardDegree, "16"}, {kPreset, "mics"}, {"cluster.ranks_per_node", "0"}, {"cluster.ranks_per_host", "4"}}),
        (Splits{4, 4, 4}));
    EXPECT_EQ(splits_of({{kShardDegree, "16"}, {kPreset, "mics"}, {"cluster.ranks_per_node", "0"}}), (Splits{16, 16, 16}));
}

TEST(Levels, ComeFromTheLinksOfTheCluster) {
    const std::string frontier = LOCKSTEP_SOURCE_DIR "/clusters/frontier.toml", h100 = LOCKSTEP_SOURCE_DIR "/clusters/h100.toml";
    const auto levels = [&](const Settings& settings, const std::string& cluster) {
        compile::Recipe recipe = small_recipe(settings);
        planning::set_levels(recipe, cluster);
        const compile::Config::Cluster c = compile::config_of(recipe).cluster;
        return fmt::format("{} {}", c.ranks_per_package, c.ranks_per_node);
    };
    EXPECT_EQ(levels({{kPreset, "three_level"}}, frontier), "2 8");
    EXPECT_EQ(levels({{kPreset, "three_level"}, {"cluster.file", frontier}}, ""), "2 8");
    EXPECT_EQ(levels({{kPreset, "mics"}}, h100), "0 8");
    EXPECT_EQ(levels({{kPreset, "mics"}, {"cluster.ranks_per_node", "4"}}, frontier), "2 4");
    EXPECT_EQ(levels({{kPreset, "zero3"}}, frontier), "0 0");  // which names no level
}

// M = 2 psi/w (where weights are split less than the optimizer) + 4 psi/g + 12 psi/o, and sums on the optimizer's shards where
// these are smaller than the gradients', 4 psi/o (arXiv 2501.04266, with float32 gradients).
TEST(Levels, NeedTheBytesOfTheFormula) {
    struct Scheme {
        const char* preset;
        int64_t w, g;  // 0: all
    };
    const sim::Cluster frontier = sim::read_cluster(LOCKSTEP_SOURCE_DIR "/clusters/frontier.toml", "--cluster");
    const ops::KernelCatalog catalog = ops::described_catalog(frontier.catalog_name, "frontier.toml", frontier.catalog);
    for (const Scheme& s : {Scheme{"zero3", 0, 0}, Scheme{"three_level", 2, 8}}) {
        for (const int64_t ranks : {64, 128, 384}) {
            compile::Recipe recipe = compile::Recipe::from_file(LOCKSTEP_SOURCE_DIR "/recipes/gpt_20b_frontier.toml");
            recipe.set(kPreset, s.preset);
            recipe.set(kShardDegree, std::to_string(ranks));
            recipe.set("training.global_batch_size", std::to_string(4 * ranks));
            planning::set_levels(recipe, "");
            compile::CompileOptions options;
            options.microbatches = compile::Microbatches::Steady, options.verify = false;
            options.catalog = catalog;
            const compile::Compiled compiled = compile::compile(recipe, options);
            double psi = 0;
            const ir::Program& program = compiled.programs[0];
            for (const ir::Parameter& p : program.params)
                psi += static_cast<double>(ir::local_elements(program.mesh, p) * std::ssize(program.block(p.block)->instances()));
            const auto all = static_cast<double>(ranks), w = s.w > 0 ? static_cast<double>(s.w) : all,
                       g = s.g > 0 ? static_cast<double>(s.g) : all;
            const double expected = (w < all ? 2 * psi / w : 0) + 4 * psi / g + (g < all ? 4 * psi / all : 0) + 12 * psi / all;
            double bytes = 0;
            for (const ir::Buffer& b : program.buffers) bytes += b.state >= 0 ? static_cast<double>(b.bytes) : 0;
            EXPECT_NEAR(bytes / expected, 1, 0.01) << s.preset << " on " << ranks << ": " << bytes / 1e9 << " GB";
        }
    }
}

}  // namespace
}  // namespace lockstep::testing
