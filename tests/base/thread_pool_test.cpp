// The thread pool under the kernels: every share is called once, shares cover the range, pools live side by side.
#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <chrono>
#include <numeric>

namespace lockstep {
namespace {

TEST(ThreadPool, CallsEveryThreadOnce) {
    for (int threads : {1, 2, 3, 5}) {
        ThreadPool pool(threads);
        for (int round = 0; round < 300; ++round) {
            std::vector<int> calls(threads, 0);
            pool.parallel([&](int thread, int count) {
                EXPECT_EQ(count, threads);
                ++calls[thread];
            });
            EXPECT_EQ(calls, std::vector<int>(threads, 1));
        }
    }
}

TEST(ThreadPool, WakesSleepingWorkers) {
    ThreadPool pool(3);
    for (int round = 0; round < 5; ++round) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        std::atomic<int> calls{0};
        pool.parallel([&](int, int) { ++calls; });
        EXPECT_EQ(calls.load(), 3);
    }
}

TEST(ThreadPool, OneThreadCallsInline) {
    ThreadPool pool(1);
    std::thread::id id;
    pool.parallel([&](int, int) { id = std::this_thread::get_id(); });
    EXPECT_EQ(id, std::this_thread::get_id());
}

TEST(ThreadPool, PinsToListedCpusAndIgnoresImpossibleOnes) {
    ThreadPool pool(3, {0, 0, 100000});
    int calls[3] = {};
    pool.parallel([&](int thread, int) { ++calls[thread]; });
    EXPECT_EQ(calls[0] + calls[1] + calls[2], 3);
}

TEST(ThreadPool, SeveralPoolsInSeveralThreads) {
    std::vector<std::thread> ranks;
    std::vector<int64_t> totals(4, 0);
    for (int rank = 0; rank < 4; ++rank)
        ranks.emplace_back([rank, &totals] {
            ThreadPool pool(1 + rank % 3);
            std::vector<int64_t> parts(pool.threads());
            for (int round = 0; round < 200; ++round) {
                pool.parallel([&](int thread, int threads) { parts[thread] = split(1000, threads, thread).count(); });
                totals[rank] += std::accumulate(parts.begin(), parts.end(), int64_t{0});
            }
        });
    for (std::thread& rank : ranks) rank.join();
    for (int64_t total : totals) EXPECT_EQ(total, 200 * 1000);
}

TEST(Split, CoversTheRangeInOrderOnAlignedBorders) {
    for (int64_t n : {0, 1, 15, 16, 17, 100, 1023})
        for (int parts : {1, 2, 3, 7})
            for (int64_t alignment : {1, 16}) {
                int64_t end = 0;
                for (int i = 0; i < parts; ++i) {
                    const Range range = split(n, parts, i, alignment);
                    EXPECT_EQ(range.begin, end);
                    EXPECT_TRUE(range.begin == n || range.begin % alignment == 0);
                    EXPECT_LE(range.count(), (n / alignment / parts + 1) * alignment);
                    end = range.end;
                }
                EXPECT_EQ(end, n);
            }
}

}  // namespace
}  // namespace lockstep
