// One flipped bit in one rank's memory.
#include "runtime/replicas.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/base/plain.h"
#include "tests/comm/process_groups.h"
#include "tests/equivalence/run.h"

namespace lockstep::testing {
namespace {

compile::Recipe recipe(int replicate, int shard, int tp) {
    return plain(compile::Recipe::from_text(
        fmt::format(
            "[model]\ndim = 16\nn_layers = 2\nn_heads = 4\nffn_dim = 24\nvocab_size = 61\n[training]\nseq_len = 16\nsteps = 9\n"
            "[lr_scheduler]\nwarmup_steps = 0\n[parallelism]\ndata_parallel_replicate_degree = {}\n"
            "data_parallel_shard_degree = {}\ntensor_parallel_degree = {}\n",
            replicate, shard, tp),
        "test"));
}

// Flips the lowest bit of the first element of a state on a rank.
void flip(runtime::Trainer& trainer, int64_t rank, const runtime::WhichStates& which, const std::string& block,
          int64_t instance) {
    trainer.ranks().parallel([&](runtime::Executor& e) {
        if (e.rank() != rank) return;
        bool done = false;
        runtime::for_each_state_run(e, which, [&](const runtime::Run& run, const ir::State& state, int buffer) {
            if (done || run.param->block != block || run.instance != instance) return;
            const int64_t at = run.local_begin * bytes_of(state.dtype);
            char bits = 0;
            e.read(buffer, at, 1, [&](const char* data) { bits = *data; });
            e.write(buffer, at, 1, [&](char* data) { *data = static_cast<char>(bits ^ 1); });
            done = true;
        });
        EXPECT_TRUE(done);
    });
}

TEST(Replicas, ThatAgreeAreFoundToAgreeInEveryLayout) {
    for (const auto& [replicate, shard, tp] : {std::tuple{2, 2, 1}, {3, 1, 1}, {1, 2, 2}, {2, 1, 2}}) {
        const compile::Recipe r = recipe(replicate, shard, tp);
        const compile::Compiled compiled = compile_recipe(r, Backend::Cpu);
        const data::SyntheticSource source = synthetic_data(r, compiled);
        runtime::Trainer trainer(compile::config_of(r), compiled, source);
        trainer.step();
        trainer.step();
        EXPECT_TRUE(runtime::replica_differences(trainer.ranks()).empty()) << replicate << " " << shard << " " << tp;
    }
}

TEST(Replicas, AFlippedBitIsFoundAndItsRankNamed) {
    const compile::Recipe r = recipe(3, 2, 1);
    const compile::Compiled compiled = compile_recipe(r, Backend::Cpu);
    const data::SyntheticSource source = synthetic_data(r, compiled);
    const auto check = [&](runtime::Trainer& trainer) {
        trainer.step();
        flip(trainer, 3, runtime::saved_as("{}"), "layer", 1);
        flip(trainer, 4, runtime::saved_as("exp_avg_sq.{}"), "embed", 0);
        const std::vector<runtime::ReplicaDifference> found = runtime::replica_differences(trainer.ranks());
        ASSERT_EQ(found.size(), 2u);
        EXPECT_EQ(found[0].state, "exp_avg_sq of embed[0]");
        EXPECT_EQ(found[0].ranks, std::vector<int64_t>{4});
        EXPECT_EQ(found[0].others, (std::vector<int64_t>{0, 2}));
        EXPECT_EQ(found[1].state, "weights of layer[1]");
        EXPECT_EQ(found[1].ranks, std::vector<int64_t>{3});
        EXPECT_EQ(found[1].others, (std::vector<int64_t>{1, 5}));
    };
    runtime::Trainer alone(compile::config_of(r), compiled, source);
    check(alone);
    const auto errors = comm::test::in_process_groups({0, 1, 1}, [&](comm::ProcessGroup& group) {
        runtime::Trainer trainer(compile::config_of(r), compiled, source, &group);
        check(trainer);
    });
    for (const auto& e : errors) EXPECT_EQ(e, nullptr);
}

}  // namespace
}  // namespace lockstep::testing
