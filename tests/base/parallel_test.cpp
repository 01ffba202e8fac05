#include "base/parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <vector>

namespace lockstep::testing {
namespace {

TEST(ParallelFor, RunsEachOnce) {
    for (const size_t n : {0u, 1u, 2u, 500u}) {
        std::vector<std::atomic<int>> runs(n);
        parallel_for(n, [&](size_t i) { ++runs[i]; });
        for (const std::atomic<int>& r : runs) EXPECT_EQ(r, 1);
    }
}

TEST(ParallelFor, ThrowsTheLowestErrorWhenAllHaveEnded) {
    std::atomic<int> ran = 0;
    try {
        parallel_for(50, [&](size_t i) {
            ++ran;
            if (i % 10 == 7) throw std::runtime_error(std::to_string(i));
        });
        ADD_FAILURE() << "nothing was thrown";
    } catch (const std::runtime_error& e) {
        EXPECT_STREQ(e.what(), "7");
    }
    EXPECT_EQ(ran, 50);
}

}  // namespace
}  // namespace lockstep::testing
