// The event simulator against times worked out by hand.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

#include "base/error.h"
#include "sim/engine.h"

namespace lockstep::testing {
namespace {

using namespace sim;

sim::Work call(int id, std::vector<Segment> segments, std::vector<int> waits = {}) {
    return {shared(std::move(segments)), std::move(waits), id};
}
Rank one_thread(std::vector<Segment> segments) { return {{{1, {call(0, std::move(segments))}}}}; }
Segment core(double s, double memory_s = 0) { return {s, memory_s, 0, -1, -1}; }
Segment collective(double core_s, int group = 0) { return {core_s, 0, 0, group, -1}; }

double end_of(const std::vector<Event>& events, int rank, int thread = 0) {
    double end = 0;
    for (const Event& e : events) {
        if (e.rank == rank && e.thread == thread) end = std::max(end, e.end_s);
    }
    return end;
}

TEST(SimEngine, FourRanksOnTwoCoresTakeTwiceAsLong) {
    const auto events =
        sim::run({one_thread({core(1)}), one_thread({core(1)}), one_thread({core(1)}), one_thread({core(1)})}, {}, {2, 1});
    for (int r = 0; r < 4; ++r) EXPECT_DOUBLE_EQ(end_of(events, r), 2);
}

TEST(SimEngine, WhatOneLeavesTheOthersGet) {
    // 3 on 2 cores: two thirds each until the first two are done at 1.5 s; the third has 1 s left, by itself.
    const auto events = sim::run({one_thread({core(1)}), one_thread({core(1)}), one_thread({core(2)})}, {}, {2, 1});
    EXPECT_NEAR(end_of(events, 0), 1.5, 1e-12);
    EXPECT_NEAR(end_of(events, 2), 2.5, 1e-12);
}

TEST(SimEngine, ACollectiveBeginsWithItsLastMember) {
    const auto events =
        sim::run({one_thread({core(1), collective(0.5), core(0.25)}), one_thread({core(2), collective(0.5)})}, {{0, 1}}, {2, 1});
    EXPECT_DOUBLE_EQ(end_of(events, 0), 2.75);
    EXPECT_DOUBLE_EQ(end_of(events, 1), 2.5);
    for (const Event& e : events) {
        if (e.segment != 1) continue;
        EXPECT_DOUBLE_EQ(e.start_s, e.rank == 0 ? 1 : 2);
        EXPECT_DOUBLE_EQ(e.ready_s, 2);
    }
}

TEST(SimEngine, CollectivesOfOneGroupMeetInOrder) {
    const auto events =
        sim::run({one_thread({collective(1), collective(1)}), one_thread({core(1), collective(1), core(1), collective(1)})},
                 {{0, 1}}, {2, 1});
    EXPECT_DOUBLE_EQ(end_of(events, 0), 4);  // it waits before each
    EXPECT_DOUBLE_EQ(end_of(events, 1), 4);
}

Segment side(mesh::Collective kind, double core_s = 0) { return {core_s, 0, 0, 0, -1, kind}; }

TEST(SimEngine, ASendGoesOnAndAReceiveWaits) {
    using mesh::Collective;
    std::vector<Segment> sends = {core(1), side(Collective::Send), core(1), side(Collective::Send), side(Collective::Wait),
                                  core(1)},
                         receives = {side(Collective::Recv, 0.25), core(3), side(Collective::Recv, 0.25)};
    const auto events = sim::run({one_thread(sends), one_thread(receives)}, {{0, 1}}, {2, 1});
    EXPECT_DOUBLE_EQ(end_of(events, 0), 3);  // the first is received at 1.25 s, before the wait at 2
    EXPECT_DOUBLE_EQ(end_of(events, 1), 4.5);
    // A symmetric collective of the same two counts for itself.
    std::vector<Segment> first = sends, second = receives;
    first.push_back(collective(0.5)), second.push_back(collective(0.5));
    EXPECT_DOUBLE_EQ(end_of(sim::run({one_thread(first), one_thread(second)}, {{0, 1}}, {2, 1}), 0), 5);
    // With a wait for each the sender stands until the second has been received, at 4.5 s.
    sends.insert(sends.end() - 1, side(Collective::Wait));
    EXPECT_DOUBLE_EQ(end_of(sim::run({one_thread(sends), one_thread(receives)}, {{0, 1}}, {2, 1}), 0), 5.5);
}

TEST(SimEngine, CommunicationRunsBesideAndIsWaitedFor) {
    Rank r;
    r.threads = {{1, {call(0, {core(1)}), call(2, {core(1)}, {1})}}, {1, {call(1, {{0, 0, 1.5, 0, -1}})}}};
    const auto events = sim::run({r}, {{0}}, {1, 1});
    EXPECT_DOUBLE_EQ(end_of(events, 0), 2.5);
    const auto waited = std::find_if(events.begin(), events.end(), [](const Event& e) { return e.segment < 0; });
    ASSERT_NE(waited, events.end());
    EXPECT_DOUBLE_EQ(waited->start_s, 1);
    EXPECT_DOUBLE_EQ(waited->end_s, 1.5);
}

TEST(SimEngine, ACommunicationThreadCompetesForTheCore) {
    Rank r;
    r.threads = {{1, {call(0, {core(1)})}}, {1, {call(1, {{0.5, 0, 0, 0, -1}})}}};
    const auto events = sim::run({r}, {{0}}, {1, 1});
    EXPECT_DOUBLE_EQ(end_of(events, 0, 1), 1);  // half of the core each
    EXPECT_DOUBLE_EQ(end_of(events, 0, 0), 1.5);
}

TEST(SimEngine, FourRanksWithTheirQueuesOnTwoCores) {
    // 8 threads: each of 4 ranks computes for 1 s and copies for 0.5 s beside it. A quarter of a core each until 2 s, when the
    // copies are done; then half a core each for the remaining 0.5 s: 3 s. All 6 s of work on 2 cores.
    Rank r;
    r.threads = {{1, {call(0, {core(1)})}}, {1, {call(1, {collective(0.5)})}}};
    const auto events = sim::run({r, r, r, r}, {{0, 1, 2, 3}}, {2, 1});
    for (int i = 0; i < 4; ++i) {
        EXPECT_NEAR(end_of(events, i, 1), 2, 1e-9);
        EXPECT_NEAR(end_of(events, i, 0), 3, 1e-9);
    }
    const auto one = sim::run({r}, {{0}}, {2, 4});  // one rank that stands for four
    EXPECT_NEAR(end_of(one, 0, 1), 2, 1e-9);
    EXPECT_NEAR(end_of(one, 0, 0), 3, 1e-9);
}

TEST(SimEngine, WhoWaitsForALeaderTakesNoCore) {
    const auto step_s = [](double computing) {
        Segment s = core(1);
        s.computing = computing;
        return end_of(sim::run({one_thread({s})}, {}, {2, 8}), 0);
    };
    EXPECT_DOUBLE_EQ(step_s(1), 4);      // eight on two cores
    EXPECT_DOUBLE_EQ(step_s(0.5), 2);    // four, whom the others wait for
    EXPECT_DOUBLE_EQ(step_s(0.125), 1);  // one has a core of its own and no more
}

TEST(SimEngine, MemoryIsShared) {
    // Each alone 1 s, but needs three quarters of the memory: two take 1.5 s. Who needs little is not slowed.
    auto events = sim::run({one_thread({core(1, 0.75)}), one_thread({core(1, 0.75)})}, {}, {2, 1});
    EXPECT_NEAR(end_of(events, 0), 1.5, 1e-12);
    events = sim::run({one_thread({core(1, 0.9)}), one_thread({core(1, 0.1)})}, {}, {2, 1});
    EXPECT_NEAR(end_of(events, 1), 1, 1e-12);
    EXPECT_NEAR(end_of(events, 0), 1, 1e-12);
    EXPECT_NEAR(end_of(sim::run({one_thread({core(1, 0.75)})}, {}, {2, 2}), 0), 1.5, 1e-12);
}

TEST(SimEngine, LinksAreSharedWhereTheyAreTheSame) {
    Rank r;
    r.threads = {{1, {call(0, {{0, 0, 1, 0, 0}})}}, {1, {call(1, {{0, 0, 1, 0, 0}})}}};
    EXPECT_DOUBLE_EQ(end_of(sim::run({r}, {{0}}, {2, 1}), 0), 2);
    r.threads[1].work[0] = call(1, {{0, 0, 1, 0, 1}});
    EXPECT_DOUBLE_EQ(end_of(sim::run({r}, {{0}}, {2, 1}), 0), 1);
}

// Devices that compute, communicate among themselves and with the next one, on three threads with waits, at random.
std::vector<Rank> random_devices(std::mt19937& random) {
    const auto below = [&](int n) { return std::uniform_int_distribution<int>(0, n - 1)(random); };
    const auto seconds = [&] { return 0.25 * below(9) + 1e-3 * below(1000); };
    std::vector<Rank> ranks(2);
    for (Rank& r : ranks) r.threads.resize(3);
    for (int i = 0, id = 0; i < 30; ++i) {
        const bool meets = below(4) == 0;
        const int thread = below(5) > 2 ? below(3) : 0, segments = 1 + below(4), waits = below(6);
        for (size_t r = 0; r < ranks.size(); ++r) {
            std::vector<Segment> all;
            for (int s = 0; s < segments; ++s) {
                const int own = static_cast<int>(r), link = below(2);
                all.push_back(below(3) == 0 ? Segment{0, 0, seconds(), own, 2 * own + link} : core(seconds()));
            }
            if (meets) all.push_back({0, 0, seconds(), 2, static_cast<int>(2 * r)});
            sim::Work w = call(id, all);
            if (waits == 0 && id > 0) w.waits = {below(id)};
            if (waits == 1) w.delay_s = seconds();
            if (waits == 2) w.not_before_s = seconds() * i;
            ranks[r].threads[static_cast<size_t>(thread)].work.push_back(std::move(w));
        }
        ++id;
    }
    return ranks;
}

TEST(SimEngine, TimesAreThoseOfTheEvents) {
    for (unsigned seed = 0; seed < 300; ++seed) {
        std::mt19937 random(seed);
        const std::vector<Rank> ranks = random_devices(random);
        const std::vector<std::vector<int>> groups = {{0}, {1}, {0, 1}};
        const Machine machine{std::numeric_limits<double>::infinity(), 1, seed % 2 == 0 ? 0.7 : 1.0};
        const std::vector<Event> events = sim::run(ranks, groups, machine);
        const WorkTimes times = times_of(ranks, groups, machine);
        std::vector<std::vector<std::vector<WorkTime>>> expected(ranks.size());
        for (size_t r = 0; r < ranks.size(); ++r) {
            for (const Thread& t : ranks[r].threads) expected[r].emplace_back(t.work.size());
        }
        for (const Event& e : events) {
            WorkTime& w = expected[static_cast<size_t>(e.rank)][static_cast<size_t>(e.thread)][static_cast<size_t>(e.work)];
            w.end_s = std::max(w.end_s, e.end_s);
            if (e.segment >= 0) w.busy_s += e.end_s - e.ready_s;
        }
        for (size_t r = 0; r < ranks.size(); ++r) {
            for (size_t t = 0; t < expected[r].size(); ++t) {
                for (size_t w = 0; w < expected[r][t].size(); ++w) {
                    EXPECT_NEAR(times[r][t][w].end_s, expected[r][t][w].end_s, 1e-9) << "seed " << seed;
                    EXPECT_NEAR(times[r][t][w].busy_s, expected[r][t][w].busy_s, 1e-9) << "seed " << seed;
                }
            }
        }
    }
}

TEST(SimEngine, RefusesToWaitForEver) {
    Rank r;
    r.threads = {{1, {call(0, {core(1)}, {7})}}};
    EXPECT_THROW(sim::run({r}, {}, {1, 1}), InternalError);
}

}  // namespace
}  // namespace lockstep::testing
