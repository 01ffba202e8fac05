#include "passes/interval_allocator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace lockstep::testing {
namespace {

using passes::Allocation;

const auto never = [](size_t, size_t) { return false; };

TEST(PassesIntervalAllocator, ItemsOfDifferentTimesShareBytes) {
    std::vector<Allocation> items = {{64, {0, 1}, {0, 1}}, {128, {1, 2}, {1, 2}}, {64, {2, 3}, {2, 3}}};
    EXPECT_EQ(allocate(items, 4, never), 192);
    EXPECT_EQ(items[1].offset, 0);
    EXPECT_EQ(items[0].offset, 128);
    EXPECT_EQ(items[2].offset, 128);
}

TEST(PassesIntervalAllocator, ConflictDecidesWhereIntervalsDoNotTell) {
    const std::vector<Allocation> items = {{64, {0, 3}, {0, 1}}, {64, {2, 3}, {2, 3}}};
    std::vector<Allocation> apart = items, together = items;
    EXPECT_EQ(allocate(apart, 4, [](size_t, size_t) { return true; }), 128);
    EXPECT_EQ(allocate(together, 4, never), 64);
}

TEST(PassesIntervalAllocator, ItemsInConflictNeverOverlapAndAlignmentIsKept) {
    constexpr int kPositions = 300, kItems = 400;
    constexpr int64_t kAlignment = 64;
    std::mt19937 random(7);
    const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    std::vector<Allocation> items;
    for (int i = 0; i < kItems; ++i) {
        const int first = below(kPositions), last = std::min(kPositions - 1, first + below(i % 9 == 0 ? kPositions : 20));
        const int possible_last = std::min(kPositions - 1, last + below(10));
        items.push_back({(1 + below(16)) * kAlignment, {first, possible_last}, {first, last}});
    }
    const auto conflict = [](size_t a, size_t b) { return (a + b) % 3 == 0; };
    const int64_t end = allocate(items, kPositions, conflict);
    for (size_t a = 0; a < items.size(); ++a) {
        EXPECT_EQ(items[a].offset % kAlignment, 0);
        EXPECT_LE(items[a].end(), end);
        for (size_t b = 0; b < a; ++b) {
            const Allocation &x = items[a], &y = items[b];
            const bool in_conflict = x.certain.intersects(y.certain) || (x.possible.intersects(y.possible) && conflict(a, b));
            EXPECT_FALSE(in_conflict && x.offset < y.end() && y.offset < x.end()) << a << " and " << b;
        }
    }
}

}  // namespace
}  // namespace lockstep::testing
