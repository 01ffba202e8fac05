// Whole programs on a clock: against the FLOPs and bytes that the program states.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "base/error.h"
#include "compile/memory_report.h"
#include "compile/traffic.h"
#include "kernels/kernel.h"
#include "ops/rule.h"
#include "sim/simulate.h"
#include "tests/compile/recipes.h"

namespace lockstep::testing {
namespace {

sim::Cluster threads(int cores) {
    sim::Cluster c;
    c.costs.cores = cores;
    c.costs.flops_per_s["f32"] = {1e9};
    c.costs.bytes_per_s = {1e30};
    return c;
}

ir::Program program(const Settings& settings) {
    return compile::compile(small_recipe(settings), {kernels::cpu_catalog(1), "", {}}).programs[0];
}

sim::Simulated simulated(const ir::Program& p, const sim::Cluster& c, compile::RankThreads rank_threads = {},
                         mesh::Link ring = {}) {
    return sim::simulate({p}, ir::EntryKind::Train, c, rank_threads, ring);
}

double step_s(const ir::Program& p, const sim::Cluster& c, compile::RankThreads rank_threads = {}, mesh::Link ring = {}) {
    return simulated(p, c, rank_threads, ring).step_time_s;
}

TEST(Simulate, OneRankTakesItsFlopsOverTheRate) {
    const ir::Program p = program({});
    EXPECT_NEAR(step_s(p, threads(1)), compile::report_of(p).flops_executed / 1e9, 1e-12);
}

TEST(Simulate, RanksShareCores) {
    const ir::Program p = program({{"parallelism.data_parallel_shard_degree", "4"}});
    const double alone = compile::report_of(p).flops_executed / 1e9;
    EXPECT_NEAR(step_s(p, threads(4)), alone, 1e-9);
    EXPECT_NEAR(step_s(p, threads(2)), 2 * alone, 1e-9);
    EXPECT_NEAR(step_s(p, threads(1)), 4 * alone, 1e-9);
}

TEST(Simulate, TheTimelineHoldsEveryOpOnceInOrder) {
    const ir::Program p = program({{"parallelism.tensor_parallel_degree", "2"}, {"parallelism.data_parallel_shard_degree", "2"}});
    for (const bool beside : {false, true}) {
        const sim::Simulated s = simulated(p, threads(4), {1, beside});
        size_t ops = 0, expected = 0;
        for (const auto& thread : s.timelines[0].threads) {
            double at = 0;
            for (const ir::TimedOp& t : thread) {
                EXPECT_GE(t.start_s, at - 1e-12);
                EXPECT_GE(t.ready_s, t.start_s);
                EXPECT_GE(t.end_s, t.ready_s);
                at = t.end_s;
                ops += t.op >= 0;
            }
        }
        for (const ir::Call& call : p.entry(ir::EntryKind::Train)->calls) {
            const ir::Routine& r = p.routines[call.routine];
            expected += std::count_if(r.ops.begin(), r.ops.end(), [&](const ir::Op& op) { return !ir::is_view(r, op); });
        }
        EXPECT_EQ(ops, expected);
        EXPECT_EQ(s.timelines[0].threads[QueueName::Comm].empty(), !beside);
    }
}

using compile::Microbatches;

compile::Compiled pipeline_of(const char* schedule, Microbatches microbatches, const char* batch = "60") {
    compile::CompileOptions options{kernels::cpu_catalog(1), "", {}};
    options.microbatches = microbatches;
    return compile::compile(small_recipe({{"parallelism.pipeline_parallel_degree", "4"},
                                          {"parallelism.pipeline_parallel_schedule", schedule},
                                          {"model.n_layers", "6"},
                                          {"training.global_batch_size", batch}}),
                            options);
}

TEST(Simulate, FewMicrobatchesStandForAllWithoutAPipeline) {
    for (const char* prefetch : {"1", "4"}) {
        compile::CompileOptions options{kernels::cpu_catalog(1), "", {}};
        const compile::Recipe recipe = small_recipe({{"parallelism.data_parallel_shard_degree", "2"},
                                                     {"parallelism.prefetch", prefetch},
                                                     {"training.global_batch_size", "120"}});
        const compile::Compiled all = compile::compile(recipe, options);
        options.microbatches = compile::Microbatches::Steady;
        const compile::Compiled few = compile::compile(recipe, options);
        EXPECT_EQ(all.programs[0].microbatches, 60);
        EXPECT_LT(few.programs[0].microbatches, 25);
        EXPECT_EQ(few.arena_bytes(), all.arena_bytes()) << prefetch;
        const auto report = compile::reports_of(few)[0], whole = compile::reports_of(all)[0];
        EXPECT_EQ(report.bytes, whole.bytes) << prefetch;
        EXPECT_NEAR(report.flops_executed / whole.flops_executed, 1, 1e-12);
        const auto sent = compile::traffic_of(few, {}), all_sent = compile::traffic_of(all, {});
        ASSERT_EQ(sent.size(), all_sent.size());
        for (size_t g = 0; g < sent.size(); ++g) EXPECT_NEAR(sent[g].total_bytes() / all_sent[g].total_bytes(), 1, 1e-12);
        sim::Cluster c = threads(2);
        const compile::RankThreads rank_threads{1, false};
        const sim::Simulated some = sim::simulate(few.programs, ir::EntryKind::Train, c, rank_threads),
                             step = sim::simulate(all.programs, ir::EntryKind::Train, c, rank_threads);
        const auto more = static_cast<double>(all.programs[0].microbatches - few.programs[0].microbatches);
        EXPECT_NEAR((some.step_time_s + more * some.microbatch_s) / step.step_time_s, 1, 2e-3) << prefetch;
    }
}

TEST(Simulate, FewMicrobatchesOfAPipelineStandForAll) {
    const auto counts = std::map<std::string, int64_t>{{"1F1B", 28}, {"ZB-H1", 28}, {"Interleaved1F1B", 20}};
    for (const auto& [schedule, count] : counts) {
        const compile::Compiled few = pipeline_of(schedule.c_str(), Microbatches::Steady),
                                all = pipeline_of(schedule.c_str(), Microbatches::All);
        EXPECT_EQ(few.programs[0].microbatches, count) << schedule;
        EXPECT_EQ(all.programs[0].microbatches, 60);
        const auto reports = compile::reports_of(few), whole = compile::reports_of(all);
        for (size_t k = 0; k < 4; ++k) {
            EXPECT_EQ(reports[k].bytes, whole[k].bytes) << schedule << ", pipeline rank " << k;
            EXPECT_NEAR(reports[k].flops_executed / whole[k].flops_executed, 1, 1e-12);
        }
        for (const bool devices : {false, true}) {
            sim::Cluster c = threads(2);
            c.devices = devices;
            c.links = {{0, {1e6, 1e-6}}};
            const sim::Simulated a = sim::simulate(few.programs, ir::EntryKind::Train, c, {1, devices}, {}),
                                 b = sim::simulate(all.programs, ir::EntryKind::Train, c, {1, devices}, {});
            const auto more = static_cast<double>(60 - count);
            EXPECT_NEAR((a.step_time_s + more * a.microbatch_s) / b.step_time_s, 1, 2.5e-3) << schedule << devices;
        }
    }
    for (const char* schedule : {"GPipe", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble"})
        EXPECT_EQ(pipeline_of(schedule, Microbatches::Steady).programs[0].microbatches, 60) << schedule;
}

TEST(Simulate, FewMicrobatchesNeedAboutTheBytesOfAll) {
    for (const char* schedule : {"1F1B", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble"}) {
        const compile::Compiled few = pipeline_of(schedule, Microbatches::Fullest),
                                all = pipeline_of(schedule, Microbatches::All);
        EXPECT_LE(few.programs[0].microbatches, 28) << schedule;
        for (size_t k = 0; k < 4; ++k) {
            EXPECT_LE(few.arena_bytes(few.programs[k]), all.arena_bytes(all.programs[k])) << schedule << ", pipeline rank " << k;
            EXPECT_GE(few.arena_bytes(few.programs[k]), 0.98 * static_cast<double>(all.arena_bytes(all.programs[k])));
        }
    }
}

// Of each technique, on devices and on cores.
TEST(Simulate, AStepWithoutItsTimelinesTakesAsLong) {
    for (const NamedSettings& sample : sample_settings()) {
        const compile::Compiled c = compile::compile(small_recipe(sample.settings), {kernels::cpu_catalog(1), "", {}});
        for (const bool devices : {false, true}) {
            sim::Cluster cluster = threads(2);
            cluster.devices = devices, cluster.beside_collective = 0.8;
            cluster.links = {{2, {4e6, 1e-6}}, {0, {1e6, 2e-6}}};
            for (const double launch_s : {0.0, 1e-5}) {
                cluster.host.launch_s = launch_s, cluster.host.microbatch_s = launch_s;
                const sim::StepTime whole = sim::simulate(c.programs, ir::EntryKind::Train, cluster, {1, true}),
                                    fast = sim::time_of(c.programs, ir::EntryKind::Train, cluster, {1, true});
                EXPECT_NEAR(fast.step_time_s / whole.step_time_s, 1, 1e-9) << sample.name << devices;
                EXPECT_NEAR(fast.microbatch_s, whole.microbatch_s, 1e-9 * whole.step_time_s) << sample.name << devices;
            }
        }
    }
}

// One job on machines whose numbers move, one after the other, and back: each time as if it were loaded anew, to the last bit.
TEST(Simulate, AReplayOnMovedNumbersIsTheStepOfThatMachine) {
    for (const NamedSettings& sample : sample_settings()) {
        const compile::Compiled c = compile::compile(small_recipe(sample.settings), {kernels::cpu_catalog(1), "", {}});
        sim::Cluster first = threads(2);
        first.devices = true, first.beside_collective = 0.8;
        first.links = {{2, {4e6, 1e-6}}, {0, {1e6, 2e-6}}};
        first.host.launch_s = 1e-5, first.host.microbatch_s = 1e-5, first.host.step_s = 1e-3;
        std::vector<sim::Cluster> moved(6, first);
        moved[0].links[1].link.bandwidth_bytes_per_s /= 2, moved[1].host.launch_s *= 3, moved[2].host.step_s *= 2;
        moved[3].beside_collective = 0.5, moved[4].costs.flops_per_s["f32"] = {5e8}, moved[5] = first;
        sim::Replay replay(c.programs, ir::EntryKind::Train, first, {1, true});
        for (const sim::Cluster& cluster : moved) {
            const sim::StepTime again = replay.on(cluster),
                                anew = sim::time_of(c.programs, ir::EntryKind::Train, cluster, {1, true});
            EXPECT_EQ(again.step_time_s, anew.step_time_s) << sample.name << " " << &cluster - moved.data();
            EXPECT_EQ(again.microbatch_s, anew.microbatch_s) << sample.name << " " << &cluster - moved.data();
        }
    }
}

TEST(Simulate, WhoWaitsForWhomCanBeReadFromATimeline) {
    for (const char* schedule : {"GPipe", "1F1B", "ZB-H1"}) {
        const compile::Compiled c = pipeline_of(schedule, Microbatches::All, "8");
        const std::vector<ir::Timeline> expected =
            sim::simulate(c.programs, ir::EntryKind::Train, threads(2), {1, false}, {}).timelines;
        std::vector<ir::Timeline> seen = expected;
        for (ir::Timeline& t : seen) {
            for (ir::TimedOp& op : t.threads[QueueName::Compute]) op.ready_s = op.start_s;
        }
        ir::match_collectives(seen);
        int waited = 0;
        for (size_t rank = 0; rank < seen.size(); ++rank) {
            for (size_t i = 0; i < seen[rank].threads[QueueName::Compute].size(); ++i) {
                const ir::TimedOp &a = seen[rank].threads[QueueName::Compute][i],
                                  &b = expected[rank].threads[QueueName::Compute][i];
                EXPECT_NEAR(a.ready_s, b.ready_s, 1e-12) << schedule << ", rank " << rank << ", op " << i;
                waited += b.ready_s > b.start_s;
            }
        }
        EXPECT_GT(waited, 8);
    }
}

TEST(Simulate, ABubbleIsTheOneOfThePaper) {
    // Equal stages, devices whose links take no time: (p - 1) / (m + p - 1) of the step is waiting.
    compile::CompileOptions options{kernels::cpu_catalog(1), "", {}};
    const compile::Compiled c = compile::compile(small_recipe({{"parallelism.pipeline_parallel_degree", "4"},
                                                               {"model.n_layers", "64"},
                                                               {"parallelism.pipeline_parallel_first_stage_less_layers", "0"},
                                                               {"parallelism.pipeline_parallel_last_stage_less_layers", "0"},
                                                               {"training.global_batch_size", "8"}}),
                                                 options);
    sim::Cluster cluster = threads(1);
    cluster.devices = true;
    cluster.links = {{0, {1e30, 0}}};
    const sim::Simulated s = sim::simulate(c.programs, ir::EntryKind::Train, cluster, {1, true}, {});
    EXPECT_NEAR(s.bubble_s / s.step_time_s, 3.0 / 11, 0.02);
}

// Of a collective's time only what its threads compute is shared out with others.
TEST(Simulate, WakingUpTakesNoCore) {
    const ir::Program p = program({{"parallelism.tensor_parallel_degree", "2"}});
    const auto with = [&](double time_s, double core_s) {
        sim::Cluster c = threads(1);
        for (const char* op : {"all_gather", "reduce_scatter", "all_reduce"})
            c.costs.collectives.push_back({op, 2, 1, time_s, core_s});
        return step_s(p, c);
    };
    const double computed = with(0, 0), woken = with(1e-3, 0) - computed, shared = with(1e-3, 1e-3) - computed;
    EXPECT_GT(woken, 0);
    EXPECT_NEAR(shared, 2 * woken, 1e-9);
}

TEST(Simulate, SlowLinksAreHiddenBehindComputeOrTheOtherWayRound) {
    const ir::Program p = program({{"parallelism.data_parallel_shard_degree", "2"}, {"model.n_layers", "8"}});
    const double compute = step_s(p, threads(4), {1, true});
    double least = 1e9;
    for (const double bytes_per_s : {1e10, 1e7, 1e6, 1e5}) {
        const mesh::Link link{bytes_per_s, 0};
        const sim::Simulated s = simulated(p, threads(4), {1, true}, link);
        double communication = 0;
        for (const ir::TimedOp& t : s.timelines[0].threads[QueueName::Comm]) communication += t.op >= 0 ? t.end_s - t.ready_s : 0;
        EXPECT_GE(s.step_time_s, std::max(compute, communication) - 1e-9);
        EXPECT_LT(s.step_time_s, compute + communication + 1e-9);
        least = std::min(least, s.step_time_s / std::max(compute, communication));
        const sim::Simulated inline_ = simulated(p, threads(4), {1, false}, link);
        EXPECT_GE(inline_.step_time_s, s.step_time_s - 1e-9);
        EXPECT_GE(inline_.exposed_communication_s, s.exposed_communication_s - 1e-9);
    }
    EXPECT_LT(least, 1.01);
}

TEST(Simulate, DevicesCommunicateOverTheLinkThatJoinsThem) {
    sim::Cluster c = threads(1);
    c.devices = true;
    c.links = {{2, {1e6, 0}}, {0, {1e3, 0}}};
    const double pair = step_s(program({{"parallelism.tensor_parallel_degree", "2"}}), c, {1, true});
    const double four = step_s(program({{"parallelism.tensor_parallel_degree", "4"}}), c, {1, true});
    EXPECT_GT(four, 100 * pair);
}

TEST(CostTable, AnExactRowIsTakenAndTheRatesCarryBetweenRows) {
    ops::CostTable t = threads(1).costs;
    const auto key = [](double m, double k) {
        return ops::CostKey{"einsum", "cpu.matmul", "f32", "nt", 1, {m, m, k}, 2 * m * m * k, 0};
    };
    t.rows = {{key(64, 64), 2 * 2e-9 * 64 * 64 * 64, 1, 1},
              {key(256, 256), 2 * 2e-9 * 256 * 256 * 256, 1, 1}};  // half of the rate
    for (ops::CostRow& row : t.rows) row.cold_s = 1.5 * row.warm_s, row.crowded_s = row.cold_s;
    EXPECT_NEAR(ops::cost_of(t, key(64, 64), 0).core_s, t.rows[0].warm_s, 1e-9 * t.rows[0].warm_s);
    EXPECT_NEAR(ops::cost_of(t, key(64, 64), 1).core_s, t.rows[0].cold_s, 1e-9 * t.rows[0].cold_s);
    EXPECT_NEAR(ops::cost_of(t, key(128, 96), 0).core_s, 2 * 2e-9 * 128 * 128 * 96, 1e-9);
    EXPECT_TRUE(ops::cost_of(t, key(128, 96), 0).measured);
    ops::CostKey unknown = key(128, 128);
    unknown.op = "something_new";
    EXPECT_FALSE(ops::cost_of(t, unknown, 1).measured);
    EXPECT_NEAR(ops::cost_of(t, unknown, 1).core_s, 2e-9 * 128 * 128 * 128, 1e-12);
}

TEST(CostTable, WhatLiesFurtherOutCostsItsPrice) {
    ops::CostTable t = threads(4).costs;
    EXPECT_EQ(ops::price_of(t, 1, 1, 1), 1);  // no caches: everything is in memory
    t.caches = {{1e3, 1, 0.25}, {1e5, 2, 1}};
    EXPECT_EQ(ops::price_of(t, 1e3, 1, 1), 0);
    EXPECT_EQ(ops::price_of(t, 2e3, 1, 1), 0.25);
    EXPECT_EQ(ops::price_of(t, 2e3, 2, 1), 0);     // two threads have two such caches
    EXPECT_EQ(ops::price_of(t, 1e3, 1, 8), 0.25);  // eight ranks share four
    EXPECT_EQ(ops::price_of(t, 1e5, 1, 1), 0.25);
    EXPECT_EQ(ops::price_of(t, 2e5, 1, 1), 1);  // it reaches one of the two
    EXPECT_EQ(ops::price_of(t, 2e5, 4, 1), 0.25);
    EXPECT_EQ(ops::price_of(t, 5e4, 1, 4), 0.25);  // half of one
    EXPECT_EQ(ops::price_of(t, 6e4, 1, 4), 1);

    // A row's warm time is that of the op's own bytes over and over: what these cost is in it already.
    const ops::CostKey small{"einsum", "cpu.matmul", "f32", "nt", 1, {64, 64, 64}, 2.0 * 64 * 64 * 64, 500};
    ops::CostKey large = small;
    large.bytes = 5e4;
    for (const ops::CostKey& key : {small, large}) {
        t.rows = {{key, 1e-3, 2e-3, 2e-3}};
        EXPECT_NEAR(ops::cost_of(t, key, 1).core_s, 2e-3, 1e-9);
        EXPECT_NEAR(ops::cost_of(t, key, 0.25).core_s, key.bytes == 500 ? 1.25e-3 : 1e-3, 1e-9);
    }
}

TEST(CostTable, CollectivesGoBetweenMeasuredBytesAndMembers) {
    ops::CostTable t = threads(2).costs;
    t.collectives = {{"all_gather", 2, 1e3, 1e-5, 1e-5}, {"all_gather", 2, 1e6, 1e-3, 4e-4}};
    EXPECT_NEAR(ops::collective_cost(t, mesh::Collective::AllGather, 2, 2e6).core_s, 8e-4, 1e-12);
    EXPECT_DOUBLE_EQ(ops::collective_cost(t, mesh::Collective::AllGather, 2, 1).time_s, 1e-5);
    EXPECT_NEAR(ops::collective_cost(t, mesh::Collective::AllGather, 2, (1e3 + 1e6) / 2).time_s, (1e-5 + 1e-3) / 2, 1e-12);
    EXPECT_NEAR(ops::collective_cost(t, mesh::Collective::AllGather, 2, 2e6).time_s, 2e-3, 1e-12);
    EXPECT_NEAR(ops::collective_cost(t, mesh::Collective::AllGather, 4, 1e6).time_s, 2e-3, 1e-12);  // copies four blocks, not two
}

compile::Compiled over_hosts(const Settings& settings, const sim::Cluster& c) {
    compile::CompileOptions options{kernels::cpu_catalog(1), "", {}};
    const compile::Recipe recipe = small_recipe(settings);
    options.route = {sim::topology_of(c, compile::layout_of(compile::config_of(recipe)).ranks), 0};
    return compile::compile(recipe, options);
}

double hosts_step_s(const Settings& settings, const sim::Cluster& c) {
    return sim::simulate(over_hosts(settings, c).programs, ir::EntryKind::Train, c, {}).step_time_s;
}

const Settings kShardedOverHosts = {{"parallelism.data_parallel_shard_degree", "4"}};

// Links so slow that nothing else counts: all that leaves the busiest host over its rate, each launch after the other.
TEST(Simulate, HostsTakeTheirBytesOverTheLink) {
    sim::Cluster c = threads(4);
    c.hosts = {2, 1, true, {1e3, 0}};
    const compile::Compiled compiled = over_hosts(kShardedOverHosts, c);
    const std::vector<double> bytes = compile::bytes_by_host(compiled, sim::topology_of(c, 4));
    ASSERT_EQ(bytes.size(), 2u);
    const double step_s = hosts_step_s(kShardedOverHosts, c);
    EXPECT_GT(bytes[0], 1e4);
    EXPECT_NEAR(step_s, bytes[0] / 1e3, 0.01 * step_s);
    c.hosts.link.bandwidth_bytes_per_s = 2e3;
    EXPECT_NEAR(hosts_step_s(kShardedOverHosts, c), step_s / 2, 0.01 * step_s);
}

TEST(Simulate, LaunchesBetweenHostsWaitForTheirMessages) {
    sim::Cluster c = threads(4);
    c.hosts = {2, 1, true, {0, 0}};
    const double without_s = hosts_step_s(kShardedOverHosts, c);
    c.hosts.link.latency_s = 1;
    const ir::Program p = over_hosts(kShardedOverHosts, c).programs[0];
    double messages =
        0;  // two rounds of agreement a launch, then of each collective in it one, two of an all-reduce of two halves
    for (const ir::Call& call : p.entry(ir::EntryKind::Train)->calls) {
        for (const ir::Op& op : p.routines[call.routine].ops) {
            if (!ops::rule(op.kind).collective) continue;
            const bool halves = op.kind == "all_reduce" && op.text("reduce") != "everywhere";
            messages += 2 + static_cast<double>(op.in.size()) * (halves ? 2 : 1);
        }
    }
    EXPECT_NEAR(hosts_step_s(kShardedOverHosts, c) - without_s, messages, 1e-3);
}

// One core for two who wait for a link and look half the time: it is as busy as the link. Any more, and it is what counts.
TEST(Simulate, WhoWaitsForMessagesLooks) {
    const Settings sharded = {{"parallelism.data_parallel_shard_degree", "2"}};
    sim::Cluster c = threads(1);
    c.hosts = {1, 1, true, {1e3, 0}};
    const double link_s = hosts_step_s(sharded, c);
    c.hosts.polling = 0.5;
    EXPECT_NEAR(hosts_step_s(sharded, c), link_s, 0.01 * link_s);
    c.hosts.polling = 0.75;
    EXPECT_NEAR(hosts_step_s(sharded, c), 1.5 * link_s, 0.02 * link_s);
}

// One core for two hosts of two ranks, and nothing counts but what it takes to send: as many bytes, whether each rank sends its
// own or one of each process for both.
TEST(Simulate, WhoSendsTakesACoreAndWhoWaitsForItDoesNot) {
    sim::Cluster c = threads(1);
    for (int ranks_per_process : {1, 2}) {
        c.hosts = {2, ranks_per_process, true, {0, 0}, 1e-3};
        const std::vector<double> bytes = compile::bytes_by_host(over_hosts(kShardedOverHosts, c), sim::topology_of(c, 4));
        const double step_s = hosts_step_s(kShardedOverHosts, c);
        EXPECT_NEAR(step_s, (bytes[0] + bytes[1]) * 1e-3, 0.01 * step_s) << ranks_per_process;
    }
}

TEST(Simulate, HostsShareCoresOnlyWhereTheyAreOneMachine) {
    sim::Cluster c = threads(2);
    c.hosts = {2, 1, false, {0, 0}};
    const Settings pipeline = {{"parallelism.pipeline_parallel_degree", "4"}};
    for (const Settings* settings : {&kShardedOverHosts, &pipeline}) {
        c.hosts.share_cores = false;
        const double apart_s = hosts_step_s(*settings, c);
        c.hosts.share_cores = true;
        const double shared_s = hosts_step_s(*settings, c);
        EXPECT_GT(shared_s, 1.01 * apart_s);
        if (settings == &kShardedOverHosts) {
            EXPECT_NEAR(shared_s, 2 * apart_s, 1e-9);
        }
    }
}

}  // namespace
}  // namespace lockstep::testing
