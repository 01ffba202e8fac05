#include "passes/interval_allocator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
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

// Each in the lowest gap of all that it is in conflict with, looked for one after the other.
int64_t allocate_plainly(std::vector<Allocation>& items, const auto& conflict) {
    std::vector<size_t> order(items.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return items[a].bytes > items[b].bytes; });
    int64_t end = 0;
    std::vector<size_t> placed;
    for (const size_t i : order) {
        Allocation& item = items[i];
        item.offset = 0;
        for (bool has_moved = true; has_moved;) {
            has_moved = false;
            for (const size_t j : placed) {
                const Allocation& o = items[j];
                const bool in_conflict =
                    o.certain.intersects(item.certain) || (o.possible.intersects(item.possible) && conflict(i, j));
                if (in_conflict && o.offset < item.end() && item.offset < o.end()) item.offset = o.end(), has_moved = true;
            }
        }
        placed.push_back(i);
        end = std::max(end, item.end());
    }
    return end;
}

TEST(PassesIntervalAllocator, EachItemIsInTheLowestGap) {
    std::mt19937 random(3);
    const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    const auto conflict = [](size_t a, size_t b) { return (a + b) % 3 == 0; };
    for (const int positions : {40, 700, 3000}) {
        for (int draw = 0; draw < 8; ++draw) {
            std::vector<Allocation> items;
            for (int i = 0; i < 600; ++i) {
                const int longest = i % 5 == 0   ? positions
                                    : i % 3 == 0 ? 400
                                                 : 6,
                          first = below(positions), last = std::min(positions - 1, first + below(longest)),
                          possible_last = draw % 2 == 0 ? last : std::min(positions - 1, last + below(i % 7 == 0 ? 600 : 3));
                items.push_back({(1 + below(i % 2 == 0 ? 4 : 40)) * 64, {first, possible_last}, {first, last}});
            }
            std::vector<Allocation> plainly = items;
            EXPECT_EQ(allocate(items, positions, conflict), allocate_plainly(plainly, conflict));
            for (size_t i = 0; i < items.size(); ++i)
                ASSERT_EQ(items[i].offset, plainly[i].offset) << "positions " << positions << ", draw " << draw << ", item " << i;
        }
    }
}

}  // namespace
}  // namespace lockstep::testing
