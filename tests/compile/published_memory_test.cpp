// The plan of recipes/gpt_175b_frontier.toml against the log of a real run of that model and layout (docs/published_memory.md):
// parameters of a rank, bytes that stay between steps, bytes of a microbatch between its forward and its backward.
#include <gtest/gtest.h>

#include <cmath>

#include "compile/memory_report.h"
#include "sim/cluster.h"
#include "tests/compile/recipes.h"
#include "tests/paths.h"

namespace lockstep::testing {
namespace {

constexpr int64_t kStages = 16, kSeq = 2048, kHidden = 12288, kTensorRanks = 4, kLayers = 6;  // layers of a stage
constexpr int64_t kMiB = 1 << 20;
// A bfloat16 for every element of the residual stream of one microbatch, which is one sequence.
constexpr int64_t kStream = 2 * kSeq * kHidden;
// As logged: parameters of a tensor-parallel rank.
constexpr int64_t kFirst = 2899359744, kInner = 2718480384, kLast = 2899384320;

std::vector<compile::StageReport> reports_with(const Settings& settings) {
    compile::Recipe recipe = compile::Recipe::from_file(LOCKSTEP_SOURCE_DIR "/recipes/gpt_175b_frontier.toml");
    recipe.set("parallelism.data_parallel_shard_degree", "2");
    recipe.set("training.global_batch_size", "64");
    for (const auto& [key, value] : settings) recipe.set(key, value);
    compile::CompileOptions options;
    const sim::Cluster frontier = sim::read_cluster(LOCKSTEP_SOURCE_DIR "/clusters/frontier.toml", "--cluster");
    options.catalog = ops::described_catalog(frontier.catalog_name, "frontier.toml", frontier.catalog);
    return compile::reports_of(compile::compile(recipe, options));
}

int64_t bytes_of(const compile::StageReport& r, ir::MemoryKind kind) { return r.bytes[static_cast<size_t>(kind)]; }

TEST(PublishedMemory, WhatStaysBetweenStepsIsThatOfTheLog) {
    const auto reports = reports_with({});
    ASSERT_EQ(static_cast<int64_t>(reports.size()), kStages);
    for (int64_t stage = 0; stage < kStages; ++stage) {
        SCOPED_TRACE(stage);
        const compile::StageReport& r = reports[static_cast<size_t>(stage)];
        const int64_t weights = bytes_of(r, ir::MemoryKind::Weights), states = bytes_of(r, ir::MemoryKind::Optimizer);
        if (stage == kStages - 1) {
            // Their copy of the embeddings has the positions too, which the head does not read; ours has no optimizer states.
            EXPECT_EQ(weights, 2 * (kLast - kSeq * kHidden));
            EXPECT_NEAR(static_cast<double>(states), 6.0 * static_cast<double>(kLast - (kFirst - kInner)), 256);
            continue;
        }
        const int64_t parameters = stage == 0 ? kFirst : kInner;
        EXPECT_EQ(weights, 2 * parameters);
        EXPECT_NEAR(static_cast<double>(states), 6.0 * static_cast<double>(parameters), 256);  // scalars of the step
        // Logged: stage 0 once the states were there; the others after a step, less the gradient partition of one byte a
        // parameter that is kept there.
        const double logged = stage == 0 ? 21.61 * 1024 * kMiB : 23360.9 * kMiB - static_cast<double>(parameters);
        EXPECT_NEAR(static_cast<double>(weights + states) / logged, 1, 0.005);
    }
}

TEST(PublishedMemory, StageKHoldsPLessKMicrobatches) {
    // What a layer saves of a microbatch: its input, and with a policy values along hidden, along heads or feed-forward, by
    // query and head, by token.
    const std::string mode = "activation_checkpoint.mode";
    const auto layer = [](double whole, double split, int64_t by_head, int64_t by_token) {
        return static_cast<int64_t>((whole + split / kTensorRanks) * kStream) +
               4 * kSeq * (by_head * 96 / kTensorRanks + by_token);
    };
    struct Policy {
        Settings settings;
        int64_t saved;
    };
    const std::vector<Policy> policies = {
        {{{mode, "full"}}, layer(1, 0, 0, 0)},
        {{{mode, "none"}}, layer(4, 8, 1, 4)},  // input, both norms' results, the sum between; q, k, v, attention, up; statistics
        {{{mode, "selective"}, {"activation_checkpoint.selective_ac_option", "op"}}, layer(2, 7, 1, 0)}};
    for (const Policy& policy : policies) {
        SCOPED_TRACE(policy.settings.front().second);
        const auto reports = reports_with(policy.settings);
        for (int64_t stage = 0; stage < kStages - 2; ++stage) {  // the last two are fullest when nothing is in flight
            EXPECT_EQ(bytes_of(reports[static_cast<size_t>(stage)], ir::MemoryKind::Activations),
                      (kStages - stage) * kLayers * policy.saved + 2 * kStream +  // a gradient on its way through the stage
                          (stage == 0 ? 1 : 2) * kStream)                         // what has been sent and is not awaited yet
                << stage;
        }
    }
    // docs/published_memory.md: the arenas of three stages, in MiB.
    const auto reports = reports_with({});
    for (const auto& [stage, mib] : {std::pair<size_t, double>{0, 38317.7}, {1, 36183.5}, {15, 33370.0}})
        EXPECT_NEAR(static_cast<double>(reports[stage].total_bytes) / static_cast<double>(kMiB), mib, 0.05) << stage;
    // As logged the slope is 300 MiB, of which 6 layers' inputs are 288.
    EXPECT_EQ(kLayers * policies[0].saved, 288 * kMiB);
}

}  // namespace
}  // namespace lockstep::testing
