// The order in which queues that run late play: legal, any, repeatable.
#include "device/scheduler.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <thread>

namespace lockstep::device {
namespace {

// Two queues of three pieces each; b2 waits for a1 if it should. The order in which they ran.
std::string play(uint64_t seed, bool waits) {
    Scheduler s(seed);
    const int a = s.add_queue(), b = s.add_queue();
    std::string order;
    Scheduler::Ticket a1, last_a, last_b;
    for (int i = 0; i < 3; ++i) {
        last_a = s.give(a, [&order, i] { order += static_cast<char>('0' + i); });
        if (i == 1) a1 = last_a;
    }
    for (int i = 0; i < 3; ++i) {
        if (i == 2 && waits) s.wait(b, a1);
        last_b = s.give(b, [&order, i] { order += static_cast<char>('a' + i); });
    }
    s.run_until(last_a);
    s.run_until(last_b);
    return order;
}

TEST(DeviceScheduler, EveryOrderOfTwoQueuesOccursAndNoOther) {
    std::set<std::string> free, bound;
    for (uint64_t seed = 0; seed < 3000; ++seed) {
        free.insert(play(seed, false));
        bound.insert(play(seed, true));
    }
    EXPECT_EQ(free.size(), 20u);   // 6 choose 3
    EXPECT_EQ(bound.size(), 16u);  // without the four in which c comes before 1: abc012, ab0c12, a0bc12, 0abc12
    for (const std::string& order : free) {
        EXPECT_LT(order.find('0'), order.find('1'));
        EXPECT_LT(order.find('1'), order.find('2'));
        EXPECT_LT(order.find('a'), order.find('b'));
        EXPECT_LT(order.find('b'), order.find('c'));
    }
    for (const std::string& order : bound) EXPECT_LT(order.find('1'), order.find('c')) << order;
}

TEST(DeviceScheduler, ASeedRepeatsItsOrder) {
    for (uint64_t seed = 0; seed < 20; ++seed) EXPECT_EQ(play(seed, true), play(seed, true));
}

TEST(DeviceScheduler, NothingHasToRunBeforeSomebodyWaits) {
    int not_run = 0;
    for (uint64_t seed = 0; seed < 50; ++seed) {
        Scheduler s(seed);
        const int q = s.add_queue();
        bool ran = false;
        const Scheduler::Ticket t = s.give(q, [&] { ran = true; });
        not_run += !ran;
        while (!s.done(t)) {
        }
        EXPECT_TRUE(ran);
    }
    EXPECT_GT(not_run, 30);
}

// Pieces of one queue never overlap, whoever runs them, and a wait holds between threads.
TEST(DeviceScheduler, SeveralThreadsWait) {
    Scheduler s(7);
    constexpr int kThreads = 3, kPieces = 400;
    std::vector<int> queues, counts(kThreads, 0);
    for (int t = 0; t < kThreads; ++t) queues.push_back(s.add_queue());
    std::vector<Scheduler::Ticket> firsts(kThreads);
    for (int t = 0; t < kThreads; ++t) firsts[t] = s.give(queues[t]);
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
        threads.emplace_back([&, t] {
            s.wait(queues[t], firsts[(t + 1) % kThreads]);
            Scheduler::Ticket last;
            for (int i = 0; i < kPieces; ++i) last = s.give(queues[t], [&counts, t] { ++counts[t]; });
            s.run_until(last);
            EXPECT_EQ(counts[t], kPieces);
        });
    }
    for (std::thread& t : threads) t.join();
}

}  // namespace
}  // namespace lockstep::device
