// What a device's rates, links, host and software make of a program's time, each against numbers worked out by hand.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <numeric>

#include "base/error.h"
#include "compile/compile.h"
#include "planning/machine.h"
#include "planning/plan.h"
#include "sim/cluster.h"
#include "sim/simulate.h"
#include "tests/cli/command.h"
#include "tests/paths.h"

namespace lockstep {
namespace {

ops::CostTable table_with(const ops::KernelRate& rate, const char* op = "einsum") {
    ops::CostTable t;
    t.flops_per_s["bf16"] = t.flops_per_s["f32"] = {1e12};
    t.bytes_per_s = {1e12};
    t.processors = 100;
    t.kernel_rates[{op, "k"}] = rate;
    return t;
}

ops::CostKey product(double m, double n, double k) { return {"einsum", "k", "bf16", "nt", 1, {m, n, k}, 2 * m * n * k, 1}; }

TEST(DeviceRates, AShortContractionReachesLess) {
    ops::KernelRate rate;
    rate.ramps = {{"k", 100}};
    EXPECT_NEAR(ops::rated_s(table_with(rate), product(1000, 1000, 300)), 6e8 / 1e12 / 0.75, 1e-12);
}

TEST(DeviceRates, WholeWavesOfTilesRun) {
    ops::KernelRate rate;
    rate.tiles = {{128, 256, 1}};
    // 1280 x 2560 are 100 tiles, one full wave; one row more makes 110 (or 2 waves of 100) of which half is used.
    const double full = ops::rated_s(table_with(rate), product(1280, 2560, 64));
    EXPECT_NEAR(full, 2 * 1280 * 2560 * 64.0 / 1e12, 1e-15);
    const double more = ops::rated_s(table_with(rate), product(1281, 2560, 64));
    EXPECT_NEAR(more / full, 2, 1e-9);
    rate.wave_exponent = 0;
    EXPECT_NEAR(ops::rated_s(table_with(rate), product(1281, 2560, 64)), 2 * 1281 * 2560 * 64.0 / 1e12, 1e-15);
}

TEST(DeviceRates, UnalignedProductsAreSlower) {
    ops::KernelRate rate;
    rate.aligned_to = 64, rate.unaligned = 0.5;
    const double aligned = ops::rated_s(table_with(rate), product(100, 128, 64));
    EXPECT_NEAR(ops::rated_s(table_with(rate), product(100, 129, 64)) / aligned, 2 * 129.0 / 128, 1e-9);
}

TEST(DeviceRates, FactorsThatAreNotSummedAlongTheirRowsAreCopiedFirst) {
    ops::KernelRate rate;
    const auto turned_s = [&](const char* variant) {
        ops::CostKey key = product(100, 200, 300);
        key.variant = variant;
        rate.turned_bytes = 0;
        const double as_is = ops::rated_s(table_with(rate), key);
        rate.turned_bytes = 2;
        return ops::rated_s(table_with(rate), key) - as_is;
    };
    EXPECT_EQ(turned_s("nt"), 0);
    EXPECT_NEAR(turned_s("tt"), 2 * 100 * 300 / 1e12, 1e-15);
    EXPECT_NEAR(turned_s("nn"), 2 * 200 * 300 / 1e12, 1e-15);
    EXPECT_NEAR(turned_s("tn"), 2 * (100 + 200) * 300 / 1e12, 1e-15);
}

TEST(DeviceRates, UnfusedAttentionMovesItsScores) {
    ops::KernelRate rate;
    rate.of_products = 0.5, rate.flops = 2, rate.score_bytes = 13;
    ops::CostTable t = table_with(rate, "attention");
    t.product_efficiency = 0.8;
    const ops::CostKey key{"attention", "k", "bf16", "", 1, {8, 100, 200, 64}, 1e9, 1};
    EXPECT_NEAR(ops::rated_s(t, key), 2e9 / (1e12 * 0.4) + 13 * 8 * 100 * 200 / 1e12, 1e-12);
}

TEST(DeviceRates, EagerOpsMoveTheirBytesSeveralTimes) {
    ops::KernelRate rate;
    rate.traffic = 2.5;
    const ops::CostKey key{"swiglu", "k", "bf16", "", 1, {10, 10}, 1, 1e9};
    EXPECT_NEAR(ops::rated_s(table_with(rate, "swiglu"), key), 2.5e-3, 1e-12);
}

sim::Cluster nodes_of_eight(int64_t ports) {
    sim::Cluster c;
    c.devices = true;
    c.links = {{8, {300, 1}}, {0, {20, 2}}};
    c.links[1].ports = ports;
    return c;
}

TEST(DeviceLinks, MembersOfANodeUseItsPortsTogether) {
    const sim::Cluster c = nodes_of_eight(8);
    const auto rate = [&](const std::vector<int64_t>& members) {
        return sim::link_of(c, members, 32).link.bandwidth_bytes_per_s;
    };
    EXPECT_EQ(rate({0, 1, 2, 3}), 300);                                            // inside a node
    EXPECT_EQ(rate({0, 8, 16, 24}), 20);                                           // one a node: one of eight ports
    EXPECT_EQ(rate({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}), 160);  // all of a node: all its ports
    const sim::Cluster one = nodes_of_eight(1);
    EXPECT_EQ(sim::link_of(one, {0, 8, 16, 24}, 32).link.bandwidth_bytes_per_s, 20.0 / 8);  // eight groups share one port
    EXPECT_EQ(sim::link_of(one, {0, 8, 16, 24}, 32).level, 1);
}

TEST(DeviceLinks, AGroupIsAsFastAsItsSlowestLevelAndItsOwnLimit) {
    sim::Cluster c = nodes_of_eight(8);
    c.links[1].link.bandwidth_bytes_per_s = 1000;  // the node is the slower part
    std::vector<int64_t> two_nodes;
    for (int64_t r = 0; r < 16; ++r) two_nodes.push_back(r);
    EXPECT_EQ(sim::link_of(c, two_nodes, 16).link.bandwidth_bytes_per_s, 300);
    c.links[1].group_bytes_per_s = 50;
    EXPECT_EQ(sim::link_of(c, two_nodes, 16).link.bandwidth_bytes_per_s, 50);
    EXPECT_EQ(sim::link_of(c, {0, 8}, 16, true).link.bandwidth_bytes_per_s, 300);  // a message is no collective
    c.links[1].crowded_beyond = 16, c.links[1].crowding = 1;
    EXPECT_EQ(sim::link_of(c, two_nodes, 64).link.bandwidth_bytes_per_s, 50.0 / 4);
    c.links[0].efficiency = 0.5, c.links[1].message_efficiency = 0.1;
    EXPECT_EQ(sim::link_of(c, {0, 1}, 64).link.bandwidth_bytes_per_s, 150);
    EXPECT_EQ(sim::link_of(c, {0, 8}, 64, true).link.bandwidth_bytes_per_s, 100);
}

TEST(DeviceLinks, TreesSaveLatenciesAndSwitchesBytes) {
    sim::Cluster c = nodes_of_eight(8);
    const sim::GroupLink link{1, {10, 3}};
    mesh::RingTraffic traffic;
    traffic.add(mesh::Collective::AllReduce, 16, 80);
    EXPECT_NEAR(sim::collective_s(c, link, mesh::Collective::AllReduce, 16, traffic), 30 * 3 + 2 * 80 * 15 / 16.0 / 10, 1e-9);
    c.links[1].trees = true;
    EXPECT_NEAR(sim::collective_s(c, link, mesh::Collective::AllReduce, 16, traffic), 8 * 3 + 2 * 80 / 10.0, 1e-9);
    c.links[1].in_switch = true;
    EXPECT_NEAR(sim::collective_s(c, link, mesh::Collective::AllReduce, 16, traffic), 2 * 3 + 80 / 10.0, 1e-9);
}

TEST(DeviceEngine, AThreadWaitsForItsHost) {
    sim::Rank rank;
    rank.threads.resize(1);
    for (int i = 0; i < 3; ++i) {
        sim::Work w;
        w.id = i, w.segments = sim::shared({{1}});
        w.not_before_s = 2.0 * i, w.delay_s = i == 1 ? 0.5 : 0;
        rank.threads[0].work.push_back(w);
    }
    const auto events = sim::run({rank}, {{0}}, {std::numeric_limits<double>::infinity(), 1, 1});
    ASSERT_EQ(events.size(), 3u);
    EXPECT_EQ(events[0].end_s, 1);
    EXPECT_EQ(events[1].end_s, 3.5);
    EXPECT_EQ(events[2].end_s, 5);
}

TEST(DeviceEngine, OpsAreSlowerBesideACollective) {
    sim::Rank rank;
    rank.threads.resize(2);
    sim::Work compute, communicate;
    compute.segments = sim::shared({{4}}), communicate.segments = sim::shared({{0, 0, 2, 0}});
    rank.threads[0].work = {compute};
    communicate.id = 1;
    rank.threads[1].work = {communicate};
    const auto events = sim::run({rank}, {{0}}, {std::numeric_limits<double>::infinity(), 1, 0.5});
    // Two seconds at half the rate, the other three at all of it.
    EXPECT_NEAR(events.back().end_s, 5, 1e-9);
}

// A small model on devices, with a stack.
double planned_s(const std::string& keys, const std::function<void(sim::Cluster&)>& change = {},
                 const std::string& flavor = "debugmodel", const std::string& of_model = "") {
    compile::Recipe recipe = compile::Recipe::from_text("[model]\nflavor = \"" + flavor + "\"\n" + of_model +
                                                            "n_layers = 6\n[training]\nseq_len = 256\ndataset = \"synthetic\"\n"
                                                            "mixed_precision_param = \"bfloat16\"\n" +
                                                            keys,
                                                        "r.toml");
    sim::Cluster c = sim::read_cluster(LOCKSTEP_SOURCE_DIR "/clusters/h100.toml", "--cluster");
    c.host = {};
    c.peer_access = false;  // collectives of other software take processors
    if (change) change(c);
    return planning::make_plan(compile::config_of(recipe), planning::described_machine(compile::config_of(recipe), c, "h"))
        .step_s();
}

const char *kData = "local_batch_size = 1\n[parallelism]\ndata_parallel_shard_degree = 4\n",
           *kPipeline =
               "global_batch_size = 8\n[parallelism]\npipeline_parallel_degree = 4\npipeline_parallel_microbatch_size = 1\n";

TEST(Stacks, TheHostIsTheFloorOfAStep) {
    const double alone = planned_s(kData);
    EXPECT_NEAR(planned_s(kData, [](sim::Cluster& c) { c.host.launch_s = 1e-12; }), alone, 1e-9);
    const double launched = planned_s(kData, [](sim::Cluster& c) { c.host.launch_s = 1e-3; });
    EXPECT_GT(launched, 0.1);  // some hundred launches
    EXPECT_NEAR(planned_s(kData, [](sim::Cluster& c) { c.host.launch_s = 2e-3; }) / launched, 2, 0.1);
    EXPECT_NEAR(planned_s(kData, [](sim::Cluster& c) { c.host.step_s = 1; }), alone + 1, 1e-9);
    EXPECT_NEAR(planned_s(kData, [](sim::Cluster& c) { c.measured.multiplier = 1.5; }), 1.5 * alone, 1e-12);
    // Each of eight microbatches holds up the last of four ranks; the first of them holds up the others on its way, too.
    const double fast = planned_s(kPipeline), slow = planned_s(kPipeline, [](sim::Cluster&c) { c.host.microbatch_s = 0.1; });
    EXPECT_GT(slow - fast, 0.8 + 3 * 0.05 - 0.01);
    EXPECT_LT(slow - fast, 1.1 + 0.01);
}

TEST(Stacks, SoftwareThatDoesMoreTakesLonger) {
    const std::string full = std::string(kData) + "[activation_checkpoint]\nmode = \"full\"\n",
                      none = std::string(kData) + "[activation_checkpoint]\nmode = \"none\"\n";
    EXPECT_GT(planned_s(full, [](sim::Cluster& c) { c.stack.whole_recompute = true; }), planned_s(full));
    EXPECT_EQ(planned_s(none, [](sim::Cluster& c) { c.stack.whole_recompute = true; }), planned_s(none));
    EXPECT_GT(planned_s(kPipeline, [](sim::Cluster& c) { c.stack.transfers_block = true; }), planned_s(kPipeline));
    const std::string reduces =
        "global_batch_size = 16\nlocal_batch_size = 2\n[parallelism]\ndata_parallel_shard_degree = 4\n"
        "[partition]\npreset = \"zero1\"\n";
    EXPECT_GT(planned_s(reduces, [](sim::Cluster& c) { c.stack.reduces_last = true; }), planned_s(reduces));
    EXPECT_GT(planned_s(reduces, [](sim::Cluster& c) { c.stack.broadcast_s = 0.01; }), planned_s(reduces) + 0.03);
    const std::string large =
        std::string("local_batch_size = 1\npack_products = false\n[parallelism]\ntensor_parallel_degree = 8\n");
    EXPECT_LT(planned_s(
                  large, [](sim::Cluster& c) { c.stack.merged_products = true; }, "8B"),
              planned_s(large, {}, "8B"))
        << "of products that are apart";
    const std::string same =
        "global_batch_size = 8\n[parallelism]\npipeline_parallel_degree = 4\ntensor_parallel_degree = 2\n"
        "sequence_parallel = false\npipeline_parallel_microbatch_size = 1\n";
    EXPECT_LT(planned_s(same, [](sim::Cluster& c) { c.stack.split_sends = true; }), planned_s(same));
}

TEST(Stacks, WhatPyTorchDoesBetweenRanksTakesLonger) {
    const std::string rows = "local_batch_size = 2\n[parallelism]\ntensor_parallel_degree = 8\n",
                      context = "local_batch_size = 1\n[parallelism]\ncontext_parallel_degree = 8\n",
                      data = "local_batch_size = 1\n[parallelism]\ndata_parallel_shard_degree = 8\n",
                      converted = "converters = [\"float8\"]\n",
                      by_rows = "[quantize.linear.float8]\nrecipe_name = \"rowwise\"\n";
    const auto copies = [](sim::Cluster& c) { c.stack.copies_blocks = true; };
    const auto repeats = [](sim::Cluster& c) { c.stack.repeats_keys = true; };
    const auto casts = [](sim::Cluster& c) { c.stack.casts_gathered = true; };
    EXPECT_GT(planned_s(rows, copies, "8B"), planned_s(rows, {}, "8B"));
    EXPECT_GT(planned_s(context, repeats, "8B"), planned_s(context, {}, "8B"));
    EXPECT_GT(planned_s(rows + by_rows, casts, "8B", converted), planned_s(rows + by_rows, {}, "8B", converted));
    // Where no ranks do so.
    EXPECT_EQ(planned_s(data, copies, "8B"), planned_s(data, {}, "8B"));
    EXPECT_EQ(planned_s(rows, repeats, "8B"), planned_s(rows, {}, "8B"));
    EXPECT_EQ(planned_s(rows, casts, "8B", converted), planned_s(rows, {}, "8B", converted)) << "one scale a tensor";
    EXPECT_EQ(planned_s(data + by_rows, casts, "8B", converted), planned_s(data + by_rows, {}, "8B", converted));
}

// A generation of kernels has its published rate on each chip, rather than one share of every chip's products.
TEST(Stacks, AttentionFollowsItsGenerationAndTheChip) {
    const std::string clusters = LOCKSTEP_SOURCE_DIR "/clusters/";
    const auto flops_per_s = [&](const std::string& cluster, const std::string& stack, const char* op) {
        const sim::Cluster c =
            sim::read_cluster(clusters + cluster + ".toml", "--cluster", clusters + "stacks/" + stack + ".toml");
        const ops::KernelRate& rate = c.costs.kernel_rates.at({op, ""});
        const ops::CostKey key{op, "k", "bf16", "", 1, {64, 1e5, 1e9, 128}, 1e15, 1};
        return key.flops * rate.flops / ops::rated_s(c.costs, key);
    };
    for (const char* op : {"attention", "attention_backward"}) {
        const double triton = flops_per_s("h100", "llm_foundry", op) / flops_per_s("a100_80gb_8nic", "llm_foundry", op),
                     products = 989.0 / 312;
        EXPECT_LT(triton, 0.85 * products) << "it does not grow as the chip's products do";
        EXPECT_GT(triton, 1);
    }
    EXPECT_NEAR(flops_per_s("h100", "torchtitan_compiled", "attention"), 3.45e14, 0.5e14);
    lockstep::testing::Scratch s;
    const std::string of = "[stack]\nname = \"s\"\nattention = ";
    const std::string three = s.write("three.toml", of + "\"flash3\"\n");
    const sim::Cluster h200 = sim::read_cluster(clusters + "h200.toml", "--cluster", three);
    EXPECT_NEAR(h200.costs.kernel_rates.at({"attention", ""}).product,
                h200.costs.kernel_rates.at({"einsum", ""}).of_products * 6.4e14 / 989e12, 1e-6)
        << "published, as much slower in a step as products are";
    const auto refused = [&](const std::string& stack, const std::string& id, const std::string& part) {
        try {
            sim::read_cluster(clusters + "a100_80gb_8nic.toml", "--cluster", stack);
            FAIL() << stack;
        } catch (const UserError& e) {
            EXPECT_EQ(e.id(), id);
            EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
        }
    };
    refused(
        three, "cluster.unknown_attention",
        "three.toml, line 3: stack.attention = \"flash3\": no file of a100_80gb_8nic has an [[attention]] table of such a kernel");
    refused(s.write("four.toml", of + "\"flash4\"\n"), "cluster.unknown_word", "stack.attention = \"flash4\"");
    // What a stack says of attention itself comes on top.
    const std::string own = s.write("own.toml", of + "\"flash2\"\n[[ops]]\nops = [\"attention\"]\nof_products = 0.25\n");
    const sim::Cluster c = sim::read_cluster(clusters + "h100.toml", "--cluster", own);
    EXPECT_EQ(c.costs.kernel_rates.at({"attention", ""}).of_products, 0.25);
    EXPECT_EQ(c.costs.kernel_rates.at({"attention", ""}).product, 0);
}

// The limit of a communicator belongs to the software, so it holds on every machine, between hosts.
TEST(Stacks, AGroupsLimitHoldsOnEveryMachine) {
    const std::string clusters = LOCKSTEP_SOURCE_DIR "/clusters/";
    for (const char* name : {"dgx2_v100_4nic", "dgx2_v100_8nic", "a100_80gb_8nic", "h100"}) {
        sim::Cluster c = sim::read_cluster(clusters + name + ".toml", "--cluster");
        std::vector<int64_t> all(64), node(8);
        std::iota(all.begin(), all.end(), 0), std::iota(node.begin(), node.end(), 0);
        const double whole = sim::link_of(c, all, 64).link.bandwidth_bytes_per_s,
                     within = sim::link_of(c, node, 64).link.bandwidth_bytes_per_s;
        EXPECT_GT(whole, 1.5e10);
        c.stack.group_bytes_per_s = 1.5e10;
        EXPECT_EQ(sim::link_of(c, all, 64).link.bandwidth_bytes_per_s, 1.5e10) << name;
        EXPECT_EQ(sim::link_of(c, node, 64).link.bandwidth_bytes_per_s, within) << name;
        EXPECT_EQ(
            sim::link_of(c, {0, 32}, 64, true).link.bandwidth_bytes_per_s,
            sim::link_of(sim::read_cluster(clusters + name + ".toml", "--cluster"), {0, 32}, 64, true).link.bandwidth_bytes_per_s)
            << "of messages there is no limit";
    }
    // Clusters that differ in their ports only, as files that build on one.
    const auto ports = [&](const char* name) { return sim::read_cluster(clusters + name + ".toml", "--cluster").links.back(); };
    EXPECT_EQ(ports("dgx2_v100_1nic").ports, 1);
    EXPECT_EQ(ports("dgx2_v100_8nic").ports, 8);
    EXPECT_EQ(ports("dgx2_v100_1nic").efficiency, ports("dgx2_v100_8nic").efficiency);
}

TEST(Stacks, LaunchesAndCollectivesOfTheHostAreAFloor) {
    const std::string tensor = "local_batch_size = 1\n[parallelism]\ntensor_parallel_degree = 4\n";
    const auto with = [&](double launch_s, double collective_s, double blocking_s) {
        return planned_s(tensor, [&](sim::Cluster& c) {
            c.host.launch_s = launch_s, c.host.collective_s = collective_s, c.host.blocking_s = blocking_s;
        });
    };
    const double launches = with(1e-3, 0, 0), more = with(1e-3, 1e-3, 0);
    // Six layers with two gathers and two reductions each way, and those of the embedding and the head.
    EXPECT_GT(more - launches, 6 * 8 * 1e-3);
    EXPECT_LT(more - launches, 6 * 16 * 1e-3);
    // Blocking launches idle the device.
    EXPECT_NEAR(with(0, 1e-3, 1e-9) - with(0, 0, 1e-9), more - launches, 2e-3);
    EXPECT_EQ(with(0, 1e-3, 0), with(0, 0, 0)) << "the host is not asked";
}

// Of two chips of one maker, that which is better in every line of its data sheet plans no slower.
TEST(Chips, ABetterDataSheetPlansNoSlower) {
    const std::string clusters = LOCKSTEP_SOURCE_DIR "/clusters/", recipes = LOCKSTEP_SOURCE_DIR "/recipes/";
    struct Chip {
        std::string name;
        bool amd;
        sim::Cluster c;
    };
    std::vector<Chip> chips;
    for (const auto& e : std::filesystem::directory_iterator(clusters + "chips")) {
        // A link that is the same for all.
        const std::string text = fmt::format(
            "name = \"c\"\ndeclared = true\n[machine]\ndevices = true\nchip = \"{}\"\n[[links]]\nranks = 0\n"
            "bandwidth_bytes_per_s = 1e11\nlatency_s = 3e-6\n",
            e.path().filename().string());
        chips.push_back({e.path().stem().string(), e.path().stem().string().starts_with("mi"),
                         sim::parse_cluster(text, clusters + "chips/c.toml")});
    }
    ASSERT_GE(chips.size(), 9U);
    const auto is_better = [](const sim::Cluster& a, const sim::Cluster& b) {
        const auto at_least = [](const std::vector<double>& x, const std::vector<double>& y) { return x[0] >= y[0]; };
        bool better = a.memory_bytes >= b.memory_bytes && at_least(a.costs.bytes_per_s, b.costs.bytes_per_s);
        for (const Dtype type : kDtypes) {
            const auto roof = [&](const sim::Cluster& c) { return ops::flops_roof(c.costs, std::string(name_of(type)), 1); };
            better = better && (is_integer(type) || roof(a) >= roof(b));
        }
        return better && (a.costs.bytes_per_s[0] > b.costs.bytes_per_s[0] ||
                          a.costs.flops_per_s.at("bf16")[0] > b.costs.flops_per_s.at("bf16")[0]);
    };
    int pairs = 0;
    for (const char* keys : {"local_batch_size = 4\n[parallelism]\ndata_parallel_shard_degree = 4\n",
                             "local_batch_size = 2\n[parallelism]\ntensor_parallel_degree = 4\n",
                             "local_batch_size = 1\n[activation_checkpoint]\nmode = \"full\"\n"}) {
        std::map<std::string, double> of;
        const std::string text = std::string(
                                     "[model]\nflavor = \"8B\"\nn_layers = 4\n[training]\nseq_len = 4096\ndataset = "
                                     "\"synthetic\"\nmixed_precision_param = \"bfloat16\"\n") +
                                 keys;
        const compile::Config config = compile::config_of(compile::Recipe::from_text(text, "r.toml"));
        for (const Chip& chip : chips)
            of[chip.name] = planning::make_plan(config, planning::described_machine(config, chip.c, "c")).step_s();
        for (const Chip& a : chips) {
            for (const Chip& b : chips) {
                if (&a == &b || a.amd != b.amd || !is_better(a.c, b.c)) continue;
                ++pairs;
                EXPECT_LE(of[a.name], of[b.name] * (1 + 1e-9)) << a.name << " against " << b.name << ": " << keys;
            }
        }
    }
    EXPECT_GE(pairs, 3 * 6);
}

TEST(Stacks, EveryFileIsReadOnEveryMachine) {
    int files = 0;
    for (const auto& e : std::filesystem::directory_iterator(LOCKSTEP_SOURCE_DIR "/clusters/stacks")) {
        const sim::Cluster c = sim::read_cluster(LOCKSTEP_SOURCE_DIR "/clusters/frontier.toml", "--cluster", e.path().string());
        EXPECT_EQ(c.stack.name, e.path().stem().string());
        EXPECT_FALSE(c.stack.description.empty());
        EXPECT_EQ(sim::print(sim::parse_cluster(sim::print(c), "again.toml")), sim::print(c));
        ++files;
    }
    EXPECT_GE(files, 10);
}

}  // namespace
}  // namespace lockstep
