// Which way a collective goes, and that every way brings everything everywhere.
#include "comm/processes/layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <set>

namespace lockstep::comm::processes {
namespace {

// Ranks of `hosts` hosts, each with so many processes.
Topology hosts_of(std::vector<int> processes, int ranks_per_process) {
    Topology topology;
    for (size_t host = 0; host < processes.size(); ++host)
        topology.host_of_rank.insert(topology.host_of_rank.end(), static_cast<size_t>(processes[host] * ranks_per_process),
                                     static_cast<int>(host));
    return topology;
}

Layout layout_of_all(const std::vector<int>& processes, int ranks_per_process) {
    const Topology topology = hosts_of(processes, ranks_per_process);
    std::vector<int> ranks;
    for (int rank = 0; rank < static_cast<int>(topology.host_of_rank.size()); ++rank) ranks.push_back(rank);
    return layout_of(ranks, ranks_per_process, topology);
}

TEST(CommLayout, PartsAreProcessesHostByHost) {
    const Topology topology{{0, 0, 1, 1, 0, 0, 1, 1}};  // processes of two ranks on hosts 0 1 0 1
    const Layout l = layout_of({7, 6, 1, 4, 5}, 2, topology);
    EXPECT_EQ(l.process_of, (std::vector<int>{3, 0, 2}));
    EXPECT_EQ(l.host_of, (std::vector<int>{0, 1, 1}));
    EXPECT_EQ(l.positions, (std::vector<std::vector<int>>{{0, 1}, {2}, {3, 4}}));
    EXPECT_EQ(l.part_of, (std::vector<int>{0, 0, 1, 2, 2}));
    EXPECT_EQ(l.chain, (std::vector<int>{0, 1, 2}));
    EXPECT_EQ(l.part_of_process(2), 2);
    EXPECT_EQ(l.part_of_process(1), -1);
    EXPECT_TRUE(layout_of({0, 2, 1}, 2, topology).chain.empty());  // a process comes twice
    EXPECT_EQ(layout_of({0, 2, 4, 6}, 2, topology).chain, (std::vector<int>{0, 2, 1, 3}));
}

TEST(CommLayout, GathersInTwoLevelsWhereHostsHaveEqualNumbersOfProcesses) {
    constexpr int64_t kSmall = 1000;
    EXPECT_EQ(choose_gather(layout_of_all({2, 2}, 1), 1000, kSmall), GatherBy::Direct);
    EXPECT_EQ(choose_gather(layout_of_all({2, 2}, 1), 1001, kSmall), GatherBy::TwoLevel);
    EXPECT_EQ(choose_gather(layout_of_all({2, 2}, 4), 1001, kSmall), GatherBy::TwoLevel);
    EXPECT_EQ(choose_gather(layout_of_all({1, 1, 1}, 4), 1001, kSmall), GatherBy::Ring);
    EXPECT_EQ(choose_gather(layout_of_all({4}, 1), 1001, kSmall), GatherBy::Ring);
    EXPECT_EQ(choose_gather(layout_of_all({2, 1}, 1), 1001, kSmall), GatherBy::Ring);
}

TEST(CommLayout, ReducesAlongAChainWhereHostsWouldSendMoreOtherwise) {
    constexpr int64_t kSmall = 1000;
    EXPECT_EQ(choose_reduce(layout_of_all({1, 1, 1, 1}, 1), 1001, kSmall), ReduceBy::Direct);  // 3/4 against 1
    EXPECT_EQ(choose_reduce(layout_of_all({1, 1}, 2), 1001, kSmall), ReduceBy::Direct);        // 1 against 1
    EXPECT_EQ(choose_reduce(layout_of_all({2, 2, 2, 2}, 1), 1001, kSmall), ReduceBy::Chain);   // 3/2 against 5/4
    EXPECT_EQ(choose_reduce(layout_of_all({8, 8, 8, 8}, 1), 1001, kSmall), ReduceBy::Chain);   // 6 against 5/4
    EXPECT_EQ(choose_reduce(layout_of_all({8, 8, 8, 8}, 1), 1000, kSmall), ReduceBy::Direct);
    EXPECT_EQ(choose_reduce(layout_of_all({2}, 1), 1001, kSmall), ReduceBy::Direct);
    const Topology topology = hosts_of({1, 1, 1, 1}, 8);
    std::vector<int> turns;
    for (int rank = 0; rank < 32; ++rank) turns.push_back(rank % 4 * 8 + rank / 4);
    EXPECT_EQ(choose_reduce(layout_of(turns, 8, topology), 1001, kSmall), ReduceBy::Direct);  // the chain would come back
}

// Plays the hops of all parts with one message in flight on each of their sides; returns parts that crossed between hosts.
int play(const Layout& l, GatherBy by) {
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

TEST(CommLayout, EveryWayBringsEveryPartEverywhereOnce) {
    for (const std::vector<int>& processes :
         std::vector<std::vector<int>>{{1}, {2}, {5}, {1, 1, 1}, {2, 2}, {3, 3}, {4, 4, 4}, {2, 2, 2, 2, 2}}) {
        const Layout l = layout_of_all(processes, 1);
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
}  // namespace lockstep::comm::processes
