#include "passes/route.h"

#include <gtest/gtest.h>

#include "ir/text.h"
#include "ops/algorithms.h"
#include "ops/verify.h"
#include "tests/compile/recipes.h"

namespace lockstep::testing {
namespace {

const Settings kShardedRecipe = {{"parallelism.data_parallel_shard_degree", "4"}, {"parallelism.tensor_parallel_degree", "2"}};

mesh::Topology hosts(std::vector<int> ranks_of_host, int ranks_per_process) {
    mesh::Topology t{{}, ranks_per_process};
    for (size_t h = 0; h < ranks_of_host.size(); ++h)
        t.host_of_rank.insert(t.host_of_rank.end(), static_cast<size_t>(ranks_of_host[h]), static_cast<int>(h));
    return t;
}

// By kind of collective and group, the algorithms of all its ops.
std::map<std::string, std::set<std::string>> algorithms(const ir::Program& p) {
    std::map<std::string, std::set<std::string>> out;
    for (const ir::Routine& r : p.routines) {
        for (const ir::Op& op : r.ops) {
            if (!ops::rule(op.kind).collective) continue;
            std::string algorithm;
            for (const char* key : {"gather", "reduce"}) algorithm += op.attrs.contains(key) ? " " + op.text(key) : "";
            if (op.attrs.contains("level")) algorithm += " " + std::to_string(op.integer("level"));
            out[op.kind + " over " + p.mesh.text(op.group)].insert(algorithm);
        }
    }
    return out;
}

TEST(Route, SaysNothingInOneProcess) {
    const ir::Program before = program_after("overlap", kShardedRecipe);
    EXPECT_EQ(passes::route(before, {}), before);
    EXPECT_EQ(passes::route(before, {hosts({8}, 8)}), before);
}

TEST(Route, EachGroupGoesAsItLiesOverHosts) {
    const ir::Program p = passes::route(program_after("overlap", kShardedRecipe), {hosts({4, 4}, 1), 0});
    const auto all = algorithms(p);
    // The ranks 0 2 | 4 6: two of a host follow each other; tp is within a process's reach.
    EXPECT_EQ(all.at("all_gather over dp_shard"), std::set<std::string>{" two_level"});
    EXPECT_EQ(all.at("reduce_scatter over dp_shard"), std::set<std::string>{" two_level 2"});
    EXPECT_EQ(all.at("all_gather over tp"), std::set<std::string>{" ring"});
    EXPECT_EQ(all.at("reduce_scatter over tp"), std::set<std::string>{" direct"});
    for (const auto& [op, of_op] : all) EXPECT_FALSE(of_op.contains("")) << op;
    EXPECT_EQ(ir::parse(ir::print(p)), p);
}

TEST(Route, SmallOnesTakeTheWayOfLeastLatency) {
    const auto all = algorithms(passes::route(program_after("overlap", kShardedRecipe), {hosts({4, 4}, 1), 1 << 30}));
    EXPECT_EQ(all.at("all_gather over dp_shard"), std::set<std::string>{" direct"});
    EXPECT_EQ(all.at("reduce_scatter over dp_shard"), std::set<std::string>{" direct"});
    for (const auto& [op, of_op] : all) {
        if (!op.starts_with("all_reduce")) continue;
        EXPECT_EQ(of_op, std::set<std::string>{" direct everywhere"}) << op;
    }
}

TEST(Route, ALibrarySumsBetweenProcessesWhatIsNoMaximum) {
    Settings settings = kShardedRecipe;
    settings.emplace_back("comm.reductions", "nccl");
    const ir::Program before = program_after("overlap", settings);
    const passes::RouteOptions options = {hosts({4, 4}, 1), 0, true};
    const ir::Program p = passes::route(before, options);
    EXPECT_FALSE(ops::verify(p).has_value());
    EXPECT_EQ(ir::parse(ir::print(p)), p);
    int maxima = 0, sums = 0;
    for (const ir::Routine& r : p.routines) {
        for (const ir::Op& op : r.ops) {
            if (!ops::rule(op.kind).collective || !op.attrs.contains("reduce")) continue;
            const bool is_maximum = r.tensors[op.in[0]].placement.reduce == ir::Reduce::Max;
            ++(is_maximum ? maxima : sums);
            EXPECT_EQ(op.text("reduce") == "library", !is_maximum);
        }
    }
    EXPECT_GT(maxima, 0);
    EXPECT_GT(sums, 0);
    EXPECT_EQ(passes::route(before, {hosts({8}, 8), 0, true}), before);
}

TEST(Route, ALibraryDoesNotAddToAResult) {
    const auto verified = [&](const char* reductions) {
        Settings of = kShardedRecipe;
        of.emplace_back("comm.reductions", reductions);
        return ops::verify(passes::route(program_after("overlap", of), {hosts({4, 4}, 1), 0, true}));
    };
    EXPECT_FALSE(verified("nccl").has_value());
    const auto violation = verified("exact");
    ASSERT_TRUE(violation.has_value());
    EXPECT_NE(violation->message.find("a library does not add to a result"), std::string::npos);
}

TEST(Route, AgainForOtherHostsLeavesNothingOfTheOldWay) {
    const ir::Program before = program_after("overlap", kShardedRecipe);
    const ir::Program two = passes::route(before, {hosts({4, 4}, 1), 0}), uneven = passes::route(before, {hosts({5, 3}, 1), 0});
    EXPECT_EQ(passes::route(two, {hosts({5, 3}, 1), 0}), uneven);
    EXPECT_EQ(passes::route(uneven, {hosts({4, 4}, 1), 0}), two);
}

// Of the sends of a pipeline, too.
TEST(Route, GroupsOfOneHostGoByPeersWhereGpusReachEachOther) {
    mesh::Topology topology = hosts({4, 4}, 1);
    topology.peers = true;
    for (const bool by_library : {false, true}) {
        Settings settings = kShardedRecipe;
        if (by_library) settings.emplace_back("comm.reductions", "nccl");
        const ir::Program before = program_after("overlap", settings);
        const ir::Program p = passes::route(before, {topology, 0, by_library});
        EXPECT_FALSE(ops::verify(p).has_value());
        EXPECT_EQ(ir::parse(ir::print(p)), p);
        int by_peers = 0;
        for (const ir::Routine& r : p.routines) {
            for (const ir::Op& op : r.ops) {
                if (!ops::rule(op.kind).collective) continue;
                const bool is_within = p.mesh.text(op.group) == "tp";  // two ranks that follow each other
                const bool by_nccl = op.attrs.contains("reduce") && op.text("reduce") == "library";
                EXPECT_EQ(ops::is_by_peers(op), is_within && !by_nccl) << op.kind << " over " << p.mesh.text(op.group);
                by_peers += ops::is_by_peers(op);
            }
        }
        EXPECT_GT(by_peers, 0);
        EXPECT_TRUE(ops::any_by_peers(p));
        topology.peers = false;
        EXPECT_FALSE(ops::any_by_peers(passes::route(p, {topology, 0, by_library})));
        topology.peers = true;
    }
}

TEST(Route, WaysThatMeanNothingAreRefused) {
    const ir::Program p = passes::route(program_after("overlap", kShardedRecipe), {hosts({4, 4}, 1), 0});
    EXPECT_FALSE(ops::verify(p).has_value());
    const auto refused = [&](const std::string& kind, const std::string& key, const ir::Attr& value) {
        ir::Program q = p;
        for (ir::Routine& r : q.routines) {
            for (ir::Op& op : r.ops) {
                if (op.kind != kind || !op.attrs.contains("gather") + !op.attrs.contains("reduce") > 1) continue;
                op.attrs[key] = value;
                const auto violation = ops::verify(q);
                return violation ? violation->message : std::string();
            }
        }
        return std::string("no such op");
    };
    EXPECT_NE(refused("all_gather", "gather", std::string("sideways")).find("its gather algorithm is unknown"),
              std::string::npos);
    EXPECT_NE(refused("all_gather", "reduce", std::string("chain")).find("not of such"), std::string::npos);
    EXPECT_NE(refused("reduce_scatter", "reduce", std::string("everywhere")).find("only an all_reduce"), std::string::npos);
    EXPECT_NE(refused("reduce_scatter", "level", int64_t{-3}).find("two_level algorithm"), std::string::npos);
    EXPECT_NE(refused("reduce_scatter", "level", int64_t{2}).find("two_level algorithm"), std::string::npos);
}

TEST(Route, GroupsThatLieDifferentlyGetOneWayThatFitsAll) {
    // tp: 0 1 | 2 3 on a host each, 4 5 across two.
    const mesh::Topology topology = hosts({5, 3}, 1);
    const ir::Program p = passes::route(program_after("overlap", kShardedRecipe), {topology, 0});
    ops::PlacedGroups groups(p, topology);
    int several = 0;
    for (const ir::Routine& r : p.routines) {
        for (const ir::Op& op : r.ops) {
            if (!ops::rule(op.kind).collective) continue;
            several += groups.of(op).size() > 1;
            for (const ops::GroupsOfOneLayout& g : groups.of(op))
                EXPECT_EQ(mesh::unfit(g.layout, ir::collective_of(op), *ops::algorithm_of(op)), "") << op.kind;
        }
    }
    EXPECT_GT(several, 0);
}

}  // namespace
}  // namespace lockstep::testing
