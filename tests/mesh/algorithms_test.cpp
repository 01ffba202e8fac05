// Which algorithm a collective gets, and that every algorithm brings everything everywhere.
#include "mesh/algorithms.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <set>

namespace lockstep::mesh {
namespace {

// Ranks of `hosts` hosts, each with so many processes.
Topology hosts_of(std::vector<int> processes, int ranks_per_process) {
    Topology topology{{}, ranks_per_process};
    for (size_t host = 0; host < processes.size(); ++host)
        topology.host_of_rank.insert(topology.host_of_rank.end(), static_cast<size_t>(processes[host] * ranks_per_process),
                                     static_cast<int>(host));
    return topology;
}

GroupLayout layout_of_all(const std::vector<int>& processes, int ranks_per_process) {
    const Topology topology = hosts_of(processes, ranks_per_process);
    std::vector<int> ranks;
    for (int rank = 0; rank < static_cast<int>(topology.host_of_rank.size()); ++rank) ranks.push_back(rank);
    return group_layout(ranks, topology);
}

TEST(Ways, PartsAreProcessesHostByHost) {
    const Topology topology{{0, 0, 1, 1, 0, 0, 1, 1}, 2};  // processes of two ranks on hosts 0 1 0 1
    const GroupLayout l = group_layout({7, 6, 1, 4, 5}, topology);
    EXPECT_EQ(l.process_of, (std::vector<int>{3, 0, 2}));
    EXPECT_EQ(l.host_of, (std::vector<int>{0, 1, 1}));
    EXPECT_EQ(l.positions, (std::vector<std::vector<int>>{{0, 1}, {2}, {3, 4}}));
    EXPECT_EQ(l.part_of, (std::vector<int>{0, 0, 1, 2, 2}));
    EXPECT_EQ(l.chain, (std::vector<int>{0, 1, 2}));
    EXPECT_EQ(l.part_of_process(2), 2);
    EXPECT_EQ(l.part_of_process(1), -1);
    EXPECT_EQ(l.level, 1);
    EXPECT_TRUE(group_layout({0, 2, 1}, topology).chain.empty());  // a process comes twice
    const GroupLayout turns = group_layout({0, 2, 4, 6}, topology);
    EXPECT_EQ(turns.chain, (std::vector<int>{0, 2, 1, 3}));
    EXPECT_EQ(turns.level, 1);  // members of a host do not follow each other
    EXPECT_EQ(group_layout({0, 4, 2, 6}, topology).level, 2);
    EXPECT_EQ(group_layout({0, 1, 4, 2, 3, 6}, topology).level, 3);
    EXPECT_EQ(group_layout({0, 1, 2, 3}, {}).parts(), 1);  // one process
}

CollectiveAlgorithm algorithm_of(const GroupLayout& l, Collective kind, int64_t block_bytes) {
    return choose_algorithm(l, kind, block_bytes, 8000);
}

TEST(Ways, GathersInTwoLevelsWhereHostsHaveEqualNumbersOfProcesses) {
    const auto gather = [](const std::vector<int>& processes, int each, int64_t bytes) {
        return algorithm_of(layout_of_all(processes, each), Collective::AllGather, bytes).gather;
    };
    EXPECT_EQ(gather({2, 2}, 1, 2000), GatherBy::Direct);
    EXPECT_EQ(gather({2, 2}, 1, 2001), GatherBy::TwoLevel);
    EXPECT_EQ(gather({2, 2}, 4, 2000), GatherBy::TwoLevel);
    EXPECT_EQ(gather({1, 1, 1}, 4, 2000), GatherBy::Ring);
    EXPECT_EQ(gather({4}, 1, 2001), GatherBy::Ring);
    EXPECT_EQ(gather({2, 1}, 1, 9000), GatherBy::Ring);
}

TEST(Ways, ReducesInTwoLevelsOrAlongAChainWhereHostsWouldSendMoreOtherwise) {
    const auto reduce = [](const std::vector<int>& processes, int each, int64_t bytes) {
        return algorithm_of(layout_of_all(processes, each), Collective::ReduceScatter, bytes);
    };
    EXPECT_EQ(reduce({1, 1, 1, 1}, 1, 9000).reduce, ReduceBy::Direct);
    EXPECT_EQ(reduce({1, 1}, 2, 9000), (CollectiveAlgorithm{GatherBy::Direct, ReduceBy::TwoLevel, 2}));
    EXPECT_EQ(reduce({2, 2, 2, 2}, 1, 9000), (CollectiveAlgorithm{GatherBy::Direct, ReduceBy::TwoLevel, 2}));
    EXPECT_EQ(reduce({8, 8, 8, 8}, 1, 250).reduce, ReduceBy::Direct);
    EXPECT_EQ(reduce({2}, 1, 9000).reduce, ReduceBy::Direct);
    EXPECT_EQ(reduce({1}, 4, 9000).level, 1);
    EXPECT_EQ(reduce({3, 2, 3}, 1, 9000).reduce, ReduceBy::Chain);
    const Topology topology = hosts_of({1, 1, 1, 1}, 8);
    std::vector<int> turns;
    for (int rank = 0; rank < 32; ++rank) turns.push_back(rank % 4 * 8 + rank / 4);
    EXPECT_EQ(algorithm_of(group_layout(turns, topology), Collective::ReduceScatter, 9000).reduce,
              ReduceBy::Direct);  // the chain would come back
}

TEST(Ways, AnAllReduceIsOfTwoHalves) {
    const GroupLayout l = layout_of_all({2, 2}, 1);
    EXPECT_EQ(algorithm_of(l, Collective::AllReduce, 2000), (CollectiveAlgorithm{GatherBy::Direct, ReduceBy::Everywhere, 1}));
    EXPECT_EQ(algorithm_of(l, Collective::AllReduce, 2001), (CollectiveAlgorithm{GatherBy::Direct, ReduceBy::Direct, 1}));
    EXPECT_EQ(algorithm_of(l, Collective::AllReduce, 9000), (CollectiveAlgorithm{GatherBy::TwoLevel, ReduceBy::TwoLevel, 2}));
    EXPECT_EQ(choose_algorithm(l, Collective::AllReduce, 9000, 8000, false),
              (CollectiveAlgorithm{GatherBy::TwoLevel, ReduceBy::Direct, 1}));
}

TEST(Ways, WhatCannotGoThatWayIsSaid) {
    const CollectiveAlgorithm algorithm{GatherBy::TwoLevel, ReduceBy::TwoLevel, 2};
    EXPECT_EQ(unfit(layout_of_all({2, 2}, 1), Collective::AllReduce, algorithm), "");
    EXPECT_NE(unfit(layout_of_all({4, 4}, 1), Collective::ReduceScatter, algorithm), "");
    EXPECT_NE(unfit(layout_of_all({2, 1}, 1), Collective::AllGather, algorithm), "");
}

// Of 8 members on 4 hosts, of which each has 1 byte for each: docs/cluster.md's table.
TEST(Ways, BytesOfTheBusiestHost) {
    const GroupLayout l = layout_of_all({2, 2, 2, 2}, 1);
    const auto most = [&](Collective kind, const CollectiveAlgorithm& algorithm) {
        const Sent sent = bytes_sent(l, kind, algorithm, 1);
        return *std::max_element(sent.by_host.begin(), sent.by_host.end());
    };
    EXPECT_EQ(most(Collective::AllGather, {GatherBy::TwoLevel}), 6);
    EXPECT_EQ(most(Collective::AllGather, {GatherBy::Ring}), 7);
    EXPECT_EQ(most(Collective::AllGather, {GatherBy::Direct}), 12);
    EXPECT_EQ(most(Collective::ReduceScatter, {GatherBy::Direct, ReduceBy::Direct}), 12);
    EXPECT_EQ(most(Collective::ReduceScatter, {GatherBy::Direct, ReduceBy::Chain}), 8);
    EXPECT_EQ(most(Collective::ReduceScatter, {GatherBy::Direct, ReduceBy::TwoLevel, 2}), 6);
    EXPECT_DOUBLE_EQ(most(Collective::AllReduce, {GatherBy::TwoLevel, ReduceBy::TwoLevel, 2}), 12. / 8);
    EXPECT_EQ(most(Collective::AllReduce, {GatherBy::Direct, ReduceBy::Everywhere}), 12);
    EXPECT_EQ(most(Collective::ReduceScatter, {GatherBy::Direct, ReduceBy::Library}), 7);  // of each block all parts but one
    EXPECT_EQ(bytes_sent(l, Collective::ReduceScatter, {GatherBy::Direct, ReduceBy::TwoLevel, 2}, 1).by_part,
              (std::vector<double>(8, 4)));
}

// Plays the hops of all parts with one message in flight on each of their sides; returns parts that crossed between hosts.
int play(const GroupLayout& l, GatherBy by) {
    std::vector<Hops> hops;
    std::vector<std::set<int>> held;
    for (int part = 0; part < l.parts(); ++part) hops.push_back(gather_hops(l, by, part)), held.push_back({part});
    std::vector<size_t> sent(hops.size()), received(hops.size());
    std::map<std::pair<int, int>, std::deque<int>> wire;
    int crossed = 0;
    for (bool moved = true; moved;) {
        moved = false;
        for (int part = 0; part < l.parts(); ++part) {
            if (sent[part] < hops[part].sends.size()) {
                const Hop& hop = hops[part].sends[sent[part]];
                auto& line = wire[{part, hop.peer}];
                if (line.empty() && held[part].count(hop.part)) {
                    line.push_back(hop.part), ++sent[part], moved = true;
                    crossed += l.host_of[part] != l.host_of[hop.peer];
                }
            }
            if (received[part] < hops[part].receives.size()) {
                const Hop& hop = hops[part].receives[received[part]];
                auto& line = wire[{hop.peer, part}];
                if (line.empty()) continue;
                EXPECT_EQ(line.front(), hop.part);
                EXPECT_TRUE(held[part].insert(hop.part).second) << "a part comes twice";
                line.pop_front(), ++received[part], moved = true;
            }
        }
    }
    for (int part = 0; part < l.parts(); ++part) {
        EXPECT_EQ(sent[part], hops[part].sends.size());
        EXPECT_EQ(static_cast<int>(held[part].size()), l.parts());
    }
    return crossed;
}

TEST(Ways, EveryWayBringsEveryPartEverywhereOnce) {
    for (const std::vector<int>& processes :
         std::vector<std::vector<int>>{{1}, {2}, {5}, {1, 1, 1}, {2, 2}, {3, 3}, {4, 4, 4}, {2, 2, 2, 2, 2}}) {
        const GroupLayout l = layout_of_all(processes, 1);
        const int hosts = static_cast<int>(processes.size());
        for (GatherBy by : {GatherBy::Direct, GatherBy::Ring, GatherBy::TwoLevel}) {
            const int crossed = play(l, by);
            const int over_ring = hosts > 1 ? hosts * (l.parts() - 1) : 0;
            const int once = (hosts - 1) * l.parts();  // each part to each other host
            EXPECT_EQ(crossed, by == GatherBy::Ring ? over_ring : by == GatherBy::TwoLevel ? once : crossed);
        }
    }
    play(layout_of_all({3, 1, 2}, 2), GatherBy::Ring);
}

}  // namespace
}  // namespace lockstep::mesh
