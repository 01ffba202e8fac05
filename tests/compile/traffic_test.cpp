// What a plan says is sent, against what goes over a wire that counts.
#include "compile/traffic.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "ops/rule.h"
#include "tests/base/plain.h"
#include "tests/comm/process_groups.h"
#include "tests/compile/recipes.h"
#include "tests/equivalence/run.h"

namespace lockstep::testing {
namespace {

compile::Recipe recipe_with(const std::string& parallelism) {
    return plain(compile::Recipe::from_text(
        fmt::format("[model]\ndim = 64\nn_layers = 3\nn_heads = 4\nffn_dim = 192\nvocab_size = 512\n"
                    "[training]\nseq_len = 32\nlocal_batch_size = 2\nglobal_batch_size = 8\nsteps = 4\n"
                    "[lr_scheduler]\nwarmup_steps = 0\n[parallelism]\n{}",
                    parallelism),
        "test"));
}

using Bytes = std::vector<int64_t>;

// What each process sends in a step, by one of the wire's counters.
Bytes sent_in_a_step(const compile::Recipe& r, const compile::Compiled& compiled, const std::vector<int>& host_of,
                     Bytes comm::test::Network::*counter) {
    comm::test::Networks networks;
    Bytes sent;
    const auto errors = comm::test::in_process_groups(
        host_of,
        [&](comm::ProcessGroup& group) {
            const data::SyntheticSource source = synthetic_data(r, compiled);
            runtime::Trainer trainer(compile::config_of(r), compiled, source, &group);
            Bytes before;
            trainer.step();
            group.exchange("");
            if (group.is_first()) before = networks.at(1).*counter;
            group.exchange("");
            trainer.step();
            group.exchange("");
            if (!group.is_first()) return;
            sent = networks.at(1).*counter;
            for (size_t p = 0; p < sent.size(); ++p) sent[p] -= before[p];
        },
        &networks);
    for (const std::exception_ptr& e : errors) EXPECT_EQ(e, nullptr);
    return sent;
}

// Every rank is a process and a host, so all that it sends goes over the wire.
TEST(Traffic, IsWhatGoesOverTheWire) {
    for (const char* parallelism :
         {"data_parallel_shard_degree = 2\n", "data_parallel_replicate_degree = 2\n", "tensor_parallel_degree = 2\n",
          "tensor_parallel_degree = 2\nsequence_parallel = false\n",
          "pipeline_parallel_degree = 2\npipeline_parallel_schedule = \"1F1B\"\n",
          "pipeline_parallel_degree = 2\npipeline_parallel_schedule = \"Interleaved1F1B\"\ndata_parallel_shard_degree = 2\n",
          "tensor_parallel_degree = 2\ndata_parallel_shard_degree = 2\n"}) {
        const compile::Recipe r = recipe_with(parallelism);
        const compile::Compiled compiled = compile_recipe(r, Backend::Cpu);
        const auto ranks = static_cast<size_t>(compiled.layout.ranks);
        std::vector<int> hosts(ranks);
        for (size_t i = 0; i < ranks; ++i) hosts[i] = static_cast<int>(i);
        double planned = 0;  // of the rank that sends most
        for (const compile::GroupTraffic& g : compile::traffic_of(compiled, hosts)) {
            EXPECT_EQ(g.hosts, g.members) << parallelism;
            planned += g.total_bytes();
        }
        const Bytes sent = sent_in_a_step(r, compiled, hosts, &comm::test::Network::sent_bytes);
        ASSERT_EQ(sent.size(), ranks);
        const auto most = static_cast<double>(*std::max_element(sent.begin(), sent.end()));
        EXPECT_NEAR(most, planned, 0.02 * planned) << parallelism;
    }
}

// Four processes on two hosts; the counting wire knows which bytes leave a host.
TEST(Traffic, OfHostsIsWhatLeavesThem) {
    for (const char* parallelism :
         {"data_parallel_shard_degree = 4\n", "data_parallel_shard_degree = 2\ndata_parallel_replicate_degree = 2\n",
          "data_parallel_shard_degree = 4\n[partition]\npreset = \"hpz\"\n[cluster]\nranks_per_node = 2\n",
          "data_parallel_shard_degree = 4\n[partition]\npreset = \"zeropp\"\n[cluster]\nranks_per_node = 2\n",
          "data_parallel_shard_degree = 4\n[partition]\npreset = \"three_level\"\n[cluster]\nranks_per_package = "
          "1\nranks_per_node "
          "= 2\n",
          "tensor_parallel_degree = 2\npipeline_parallel_degree = 2\npipeline_parallel_schedule = \"1F1B\"\n",
          "pipeline_parallel_degree = 4\npipeline_parallel_schedule = \"1F1B\"\n"}) {
        const compile::Recipe r = recipe_with(parallelism);
        const mesh::Topology topology = {{0, 0, 1, 1}, 1};
        const compile::Compiled compiled = compile_recipe(r, Backend::Cpu, {}, {topology, 0});
        const std::vector<double> planned = compile::bytes_by_host(compiled, topology);
        ASSERT_EQ(planned.size(), 2u);
        const Bytes sent = sent_in_a_step(r, compiled, topology.host_of_rank, &comm::test::Network::left_host_bytes);
        ASSERT_EQ(sent.size(), 4u);
        for (size_t host = 0; host < 2; ++host)
            EXPECT_NEAR(static_cast<double>(sent[2 * host] + sent[2 * host + 1]), planned[host], 0.02 * planned[host])
                << parallelism << host;
    }
}

// Eight context ranks on four hosts. What is sent in addition to the plan, to agree on each collective, is the same for sequences of
// any length: what two lengths differ in is exact.
TEST(Traffic, OfContextRanksIsExact) {
    for (const char* form :
         {"\"allgather\"\n", "\"alltoall\"\n", "\"ulysses\"\n", "\"allgather\"\ncontext_parallel_head_degree = 2\n",
          "\"alltoall\"\ncontext_parallel_head_degree = 2\n"}) {
        compile::Recipe r = recipe_with(std::string("context_parallel_degree = 8\ncontext_parallel_rotate_method = ") + form);
        r.set("model.n_heads", "8"), r.set("model.n_kv_heads", "8");
        const mesh::Topology topology = {{0, 0, 1, 1, 2, 2, 3, 3}, 1};
        std::vector<double> unplanned[2];
        for (const int length : {0, 1}) {
            r.set("training.seq_len", length == 0 ? "32" : "96");
            const compile::Compiled compiled = compile_recipe(r, Backend::Cpu, {}, {topology, 0});
            unplanned[length] = compile::bytes_by_host(compiled, topology);
            ASSERT_EQ(unplanned[length].size(), 4u);
            EXPECT_GT(unplanned[length][0], 1e6);
            const Bytes sent = sent_in_a_step(r, compiled, topology.host_of_rank, &comm::test::Network::left_host_bytes);
            ASSERT_EQ(sent.size(), 8u);
            for (size_t rank = 0; rank < 8; ++rank) unplanned[length][rank / 2] -= static_cast<double>(sent[rank]);
        }
        EXPECT_EQ(unplanned[0], unplanned[1]) << form;
    }
}

// Weights that cross hosts as codes, and what is reduced for their scales.
TEST(Traffic, OfWeightsInFloat8IsWhatLeavesHosts) {
    for (const char* preset : {"zero3", "zero1", "hpz"}) {
        compile::Recipe r = recipe_with("data_parallel_shard_degree = 4\n[cluster]\nranks_per_node = 2\n");
        r.set("partition.preset", preset);
        r.set("model.converters", "quantize.linear.float8");
        const mesh::Topology topology = {{0, 0, 1, 1}, 1};
        double planned[2];
        for (const int gathers : {0, 1}) {
            r.set("quantize.linear.float8.enable_fsdp_float8_all_gather", gathers == 1 ? "true" : "false");
            const compile::Compiled compiled = compile_recipe(r, Backend::Cpu, {}, {topology, 0});
            planned[gathers] = compile::bytes_by_host(compiled, topology).at(0);
            const Bytes sent = sent_in_a_step(r, compiled, topology.host_of_rank, &comm::test::Network::left_host_bytes);
            ASSERT_EQ(sent.size(), 4u);
            EXPECT_NEAR(static_cast<double>(sent[0] + sent[1]), planned[gathers], 0.02 * planned[gathers]) << preset;
        }
        EXPECT_LT(planned[1], 0.9 * planned[0]) << preset;
    }
}

// What all stages meet in is in every stage's program, and sent once.
TEST(Traffic, WhatAllStagesMeetInCountsOnce) {
    const compile::Recipe r = recipe_with("pipeline_parallel_degree = 4\npipeline_parallel_schedule = \"1F1B\"\n");
    const mesh::Topology topology = {{0, 1, 2, 3}, 1};
    compile::Compiled compiled = compile_recipe(r, Backend::Cpu, {}, {topology, 0});
    double expected = 0;
    for (ir::Program& p : compiled.programs) {
        for (ir::Routine& routine : p.routines) {
            std::erase_if(routine.ops, [&](const ir::Op& op) {
                const std::optional<mesh::Collective> kind = mesh::collective_named(op.kind);
                return !kind || !mesh::traits_of(*kind).symmetric;
            });
            for (const ir::Op& op : routine.ops) {  // scalars, reduced everywhere or in slices over 4 hosts
                if (&p == &compiled.programs[0])
                    expected += (op.text("reduce") == "everywhere" ? 3. : 6. / 4) * 8 * static_cast<double>(op.in.size());
            }
        }
    }
    ASSERT_GT(expected, 0);
    for (double bytes : compile::bytes_by_host(compiled, topology)) EXPECT_DOUBLE_EQ(bytes, expected);
}

TEST(Traffic, GroupsOnHosts) {
    const compile::Recipe r = recipe_with("tensor_parallel_degree = 2\ndata_parallel_shard_degree = 2\n");
    const compile::Compiled compiled = compile_recipe(r, Backend::Cpu);
    std::map<std::string, compile::GroupTraffic> by_axes;
    for (compile::GroupTraffic& g : compile::traffic_of(compiled, {0, 0, 1, 1})) by_axes[g.axes] = g;
    ASSERT_TRUE(by_axes.contains("tp") && by_axes.contains("dp_shard"));
    EXPECT_EQ(by_axes["tp"].hosts, 1);
    EXPECT_EQ(by_axes["tp"].groups, 2);
    EXPECT_TRUE(by_axes["tp"].tensor_parallel);
    EXPECT_FALSE(by_axes["dp_shard"].tensor_parallel);
    EXPECT_EQ(by_axes["dp_shard"].hosts, 2);
    EXPECT_EQ(by_axes["dp_shard"].first, (std::vector<int64_t>{0, 2}));
    EXPECT_GT(by_axes["dp_shard"].bytes["all_gather"], 0);
    for (compile::GroupTraffic& g : compile::traffic_of(compiled, {0, 1, 0, 1})) by_axes[g.axes] = g;
    EXPECT_EQ(by_axes["tp"].hosts, 2);
}

}  // namespace
}  // namespace lockstep::testing
