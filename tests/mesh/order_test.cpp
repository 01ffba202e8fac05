#include "mesh/order.h"

#include <gtest/gtest.h>

#include <vector>

namespace lockstep::mesh {
namespace {

std::vector<int64_t> order_of(int64_t seq, int64_t n) {
    std::vector<int64_t> out;
    for (int64_t j = 0; j < seq; ++j) out.push_back(position_of(seq, n, j));
    return out;
}

TEST(SequenceOrder, OneRankHasThePlainOrder) { EXPECT_EQ(order_of(5, 1), (std::vector<int64_t>{0, 1, 2, 3, 4})); }

TEST(SequenceOrder, ARankHasAPieceFromTheHeadAndOneFromTheTail) {
    EXPECT_EQ(order_of(8, 2), (std::vector<int64_t>{0, 1, 6, 7, 2, 3, 4, 5}));
    EXPECT_EQ(order_of(6, 3), (std::vector<int64_t>{0, 5, 1, 4, 2, 3}));
}

TEST(SequenceOrder, EveryPositionIsThereOnceAndRanksSeeEquallyMany) {
    for (const int64_t n : {2, 3, 4, 8}) {
        const int64_t seq = 6 * n;
        std::vector<int> times(static_cast<size_t>(seq), 0);
        std::vector<int64_t> seen(static_cast<size_t>(n), 0);  // keys under a causal mask, by rank
        for (int64_t j = 0; j < seq; ++j) {
            const int64_t at = position_of(seq, n, j);
            ASSERT_TRUE(at >= 0 && at < seq);
            ++times[static_cast<size_t>(at)];
            seen[static_cast<size_t>(j / (seq / n))] += at + 1;
        }
        EXPECT_EQ(times, std::vector<int>(static_cast<size_t>(seq), 1));
        EXPECT_EQ(seen, std::vector<int64_t>(static_cast<size_t>(n), seq * (seq + 1) / 2 / n));
    }
}

}  // namespace
}  // namespace lockstep::mesh
