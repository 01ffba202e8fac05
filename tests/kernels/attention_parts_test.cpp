// A backward of attention by cuDNN in parts: how large they are, and that together they are the whole.
#include <gtest/gtest.h>

#include <set>

#include "kernels/cuda/attention_kernels.h"

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
                AttentionParts parts{whole, batches, groups, 0};
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

}  // namespace
}  // namespace lockstep::testing
