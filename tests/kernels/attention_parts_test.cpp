// A backward of attention by cuDNN in parts, and pieces of attention over context ranks: how large they are, and that together they
// are the whole.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <utility>

#include "kernels/cuda/attention_kernels.h"
#include "mesh/order.h"

namespace lockstep::testing {
namespace {

using kernels::cuda::AttentionParts;
using kernels::cuda::AttentionProblem;

AttentionProblem backward(int64_t batch, int64_t seq, int64_t kv_heads, int64_t group, int64_t head_dim = 128) {
    return {{batch, seq, seq, kv_heads, group, head_dim, 0.125f, 0}, Dtype::BF16, true};
}
AttentionParts parts_of(const AttentionProblem& p) {
    return kernels::cuda::parts_of(p, [](const AttentionProblem& q) { return kernels::cuda::attention_bytes_of_cudnn(q, 90); })
        .value();
}

TEST(AttentionParts, AreTheLargestWithinOneGibibyte) {
    const AttentionParts whole = parts_of(backward(8, 1024, 12, 1, 64));
    EXPECT_EQ(whole.batches * whole.groups, 1);
    EXPECT_EQ(whole.part.row_kv_heads, 0);
    const AttentionParts sequences = parts_of(backward(12, 4096, 4, 4));  // 516 MiB and rows each
    EXPECT_EQ(sequences.batches, 12);
    EXPECT_EQ(sequences.groups, 1);
    const AttentionParts some = parts_of(backward(6, 2048, 8, 4));  // 256 MiB and rows each
    EXPECT_EQ(some.batches, 2);
    EXPECT_EQ(some.part.shape.batch, 3);
    const AttentionParts heads = parts_of(backward(2, 8192, 8, 4));  // 512 MiB and rows for each key head
    EXPECT_EQ(heads.batches, 2);
    EXPECT_EQ(heads.groups, 8);
    EXPECT_EQ(heads.part.shape.kv_heads, 1);
    EXPECT_EQ(heads.part.row_kv_heads, 8);
    EXPECT_LE(heads.bytes, kernels::cuda::kPartBytes);
    const AttentionParts smallest = parts_of(backward(1, 32768, 8, 4));
    EXPECT_EQ(smallest.groups, 8);
    EXPECT_GT(smallest.bytes, kernels::cuda::kAttentionWorkspaceBytes);
}

// By the strides that a plan is given: the parts reach each element of a tensor, or of the rows of all, and of the sums once.
TEST(AttentionParts, AreTheWholeTogether) {
    const auto reaches_all = [](const std::multiset<int64_t>& reached, int64_t count) {
        EXPECT_EQ(std::ssize(reached), count);
        EXPECT_EQ(std::ssize(std::set<int64_t>(reached.begin(), reached.end())), count);
        EXPECT_EQ(*reached.rbegin(), count - 1);
    };
    for (const bool packed : {false, true}) {
        AttentionProblem whole = backward(4, 6, 6, 2, 3);
        whole.shape.packed = packed;
        for (const int64_t batches : {1, 2, 4}) {
            for (const int64_t groups : {1, 2, 3, 6}) {
                if (groups > 1 && batches < 4) continue;  // of one sequence
                AttentionParts parts{whole, batches, groups, 1, 0};
                parts.part.row_kv_heads = 6, parts.part.shape.batch = 4 / batches, parts.part.shape.kv_heads = 6 / groups;
                const kernels::AttentionShape& s = parts.part.shape;
                std::multiset<int64_t> queries, keys, values, results, sums;
                const auto add = [&](std::multiset<int64_t>& to, int64_t begin, int64_t heads, int64_t stride) {
                    for (int64_t i = 0; i < s.batch * s.seq; ++i) {
                        for (int64_t x = 0; x < s.kv_heads * heads * s.head_dim; ++x) to.insert(begin + i * stride + x);
                    }
                };
                for (int64_t b = 0; b < batches; ++b) {
                    for (int64_t g = 0; g < groups; ++g) {
                        const int64_t first_key = packed ? whole.shape.first_key() : 0,
                                      first_value = packed ? whole.shape.first_value() : 0;
                        add(queries, parts.begin_of_queries(b, g), s.group, parts.part.query_stride());
                        add(keys, first_key + parts.begin_of_keys(b, g), 1, parts.part.key_stride());
                        add(values, first_value + parts.begin_of_keys(b, g), 1, parts.part.key_stride());
                        add(results, parts.begin_of_results(b, g), s.group, parts.part.result_stride());
                        for (int64_t i = 0; i < s.batch * s.seq; ++i) {
                            for (int64_t h = 0; h < s.kv_heads * s.group; ++h)
                                sums.insert(parts.begin_of_sums(b, g) + i / s.seq * 12 * s.seq + h * s.seq + i % s.seq);
                        }
                    }
                }
                constexpr int64_t kKeys = 4 * 6 * 6 * 3;
                reaches_all(results, 2 * kKeys);
                reaches_all(sums, 2 * kKeys / 3);
                if (packed) {
                    queries.merge(keys), queries.merge(values);
                    reaches_all(queries, 4 * kKeys);
                } else {
                    reaches_all(queries, 2 * kKeys), reaches_all(keys, kKeys), reaches_all(values, kKeys);
                }
            }
        }
    }
}

// The backward of a block of queries and as many keys, with one key head of 32,768 tokens: 8 GiB if it is not divided.
TEST(AttentionParts, OfBlocksHaveSomeOfTheQueries) {
    const auto bytes_of = [](const AttentionProblem& q) { return kernels::cuda::attention_bytes_of_cudnn(q, 90); };
    AttentionProblem block = backward(1, 32768, 2, 4);
    EXPECT_GT(bytes_of(block).value(), int64_t{16} << 30);
    const AttentionParts parts = kernels::cuda::parts_of(block, bytes_of, kernels::cuda::kRowsOfPart).value();
    EXPECT_EQ(parts.groups, 2);
    EXPECT_EQ(parts.rows, 16);
    EXPECT_EQ(parts.part.shape.seq, 2048);
    EXPECT_LE(parts.bytes, kernels::cuda::kPartBytes);
    EXPECT_EQ(parts.part_of_rows(0).shape.kv_seq, 2048);
    EXPECT_EQ(parts.part_of_rows(15).shape.kv_seq, 32768);
    for (int64_t row = 0; row < 16; ++row) EXPECT_LE(bytes_of(parts.part_of_rows(row)).value(), parts.bytes);
    block.causal = false;
    EXPECT_EQ(kernels::cuda::parts_of(block, bytes_of, kernels::cuda::kRowsOfPart).value().part_of_rows(0).shape.kv_seq, 32768);
    block.shape.seq = 1000;  // no multiple of parts' rows
    EXPECT_EQ(kernels::cuda::parts_of(block, bytes_of, kernels::cuda::kRowsOfPart).value().rows, 1);
}

// Every query of every rank sees the keys up to its own, each once.
TEST(AttentionPieces, AreTheCausalMaskOfTheWholeSequence) {
    constexpr int64_t kTokens = 6;
    for (const bool rings : {true, false}) {
        for (const bool head_tail : {true, false}) {
            for (const int64_t n : {1, 2, 3, 5}) {
                const int64_t order = head_tail ? n : 1, seq = n * kTokens;
                const auto position = [&](int64_t rank, int64_t token) {
                    return mesh::position_of(seq, order, rank * kTokens + token);
                };
                for (int64_t rank = 0; rank < n; ++rank) {
                    std::multiset<std::pair<int64_t, int64_t>> seen, expected;
                    for (int64_t shift = 0; shift < (rings ? n : 1); ++shift) {
                        const kernels::cuda::ContextRanks ranks = {n, head_tail && n > 1, rings, shift};
                        for (const kernels::cuda::Piece& p : pieces_of(ranks, kTokens, rank)) {
                            for (int64_t q = 0; q < p.queries; ++q) {
                                for (int64_t k = 0; k < (p.causal ? p.keys - p.queries + q + 1 : p.keys); ++k)
                                    seen.insert(
                                        {position(rank, p.first_query + q), rings ? position((rank - shift + n) % n, k) : k});
                            }
                        }
                    }
                    for (int64_t q = 0; q < kTokens; ++q) {
                        for (int64_t k = 0; k <= position(rank, q); ++k) expected.insert({position(rank, q), k});
                    }
                    EXPECT_EQ(seen, expected) << n << " ranks, rank " << rank << (rings ? ", a ring" : "");
                }
            }
        }
    }
}

// By their pairs of queries and keys: in head-tail order all ranks of a ring do as much at each hop.
TEST(AttentionPieces, HaveWorkspaceForTheLargestOfAllRanks) {
    using kernels::cuda::ContextRanks;
    for (const int64_t n : {2, 4}) {
        for (const bool rings : {true, false}) {
            for (const bool head_tail : {true, false}) {
                for (int64_t shift = 0; shift < (rings ? n : 1); ++shift) {
                    const ContextRanks ranks = {n, head_tail, rings, shift};
                    const auto largest = kernels::cuda::largest_pieces(ranks, 8);
                    std::set<int64_t> works;
                    for (int64_t rank = 0; rank < n; ++rank) {
                        int64_t work = 0;
                        for (const kernels::cuda::Piece& p : pieces_of(ranks, 8, rank)) {
                            work += p.causal ? p.queries * (2 * p.keys - p.queries + 1) / 2 : p.queries * p.keys;
                            EXPECT_TRUE(std::any_of(largest.begin(), largest.end(), [&](const kernels::cuda::Piece& l) {
                                return l.queries == p.queries && l.keys >= p.keys && l.causal == p.causal;
                            }));
                        }
                        works.insert(work);
                    }
                    EXPECT_TRUE(works.size() == 1 || !head_tail) << n << " ranks, shift " << shift;
                }
            }
        }
    }
}

}  // namespace
}  // namespace lockstep::testing
