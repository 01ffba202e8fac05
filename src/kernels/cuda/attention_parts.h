// What cuDNN asks for to compute attention, and a problem that would need too much of it as several smaller ones.
#pragma once

#include <limits>
#include <optional>

#include "base/round.h"
#include "kernels/cuda/attention_plans.h"
#include "kernels/cuda/gpu_kind.h"

namespace lockstep::kernels::cuda {

// What a plan of cuDNN may use, bytes; our own kernel serves what asks for more. The backward of a batch, with its sums in one
// order, keeps the gradients of all scores: heads x seq x seq of 2 bytes (cuDNN before 9.25, and on Hopper). It is computed in
// equal parts, the largest that stay within kPartBytes: some sequences, or some key heads of one. One part of that size already
// occupies all processors of an H100. The smallest part is one key head of one sequence.
inline constexpr int64_t kAttentionWorkspaceBytes = int64_t{5} << 30, kPartBytes = int64_t{1} << 30;

// Elements of a head. A backward of longer heads is only for Hopper.
inline constexpr int64_t kHeadDimMultiple = 8, kMostHeadDim = 256, kMostHeadDimBackward = 128;

// What cuDNN 9.19 asks for where the kernels below serve, on GPUs of compute capability 8.0, 8.6, 8.9, 9.0, 10.0 and 12.0
// (tests/gpu/plans): for backward, with sums in one order, a sum a row; gradients of keys and values for each query head, before
// a group is added up; except on 10.0 the gradients of the scores, in tiles. With sums in any order: float32 sums of the
// queries' gradients, twice where another kernel casts them. Nothing: it has no plan.
inline std::optional<int64_t> attention_bytes_of_cudnn(const AttentionProblem& p, int compute_capability) {
    const GpuKind kind = kind_of(compute_capability);
    const bool is_hopper = kind == GpuKind::Hopper, keeps_scores = kind != GpuKind::Blackwell;
    if (!p.backward) return is_hopper ? 256 : 0;
    const AttentionShape& s = p.shape;
    if (s.head_dim > kMostHeadDimBackward && !is_hopper) return std::nullopt;
    const int64_t heads = s.batch * s.kv_heads * s.group, rows = heads * s.seq, of_keys = heads * s.kv_seq * s.head_dim;
    constexpr int64_t kFloat = sizeof(float);
    if (p.any_order) {
        const bool casts = !is_hopper && (kind != GpuKind::Blackwell || s.seq <= 128);
        const int64_t sums = kFloat * (rows * (1 + s.head_dim * (casts ? 2 : 1)) + (s.group > 1 ? of_keys : 0));
        return sums + (is_hopper ? 256 : casts || s.group > 1 ? 128 : 0);
    }
    const int64_t scores = keeps_scores ? heads * round_up(s.seq, 64) * round_up(s.kv_seq, 128) * 2 : 0;
    const int64_t keys_and_values = s.group > 1 ? 2 * of_keys * (keeps_scores ? 2 : 4) : 0;
    const int64_t always = is_hopper ? 256 : scores + keys_and_values > 0 ? 128 : 0;
    return rows * kFloat + scores + keys_and_values + always;
}

// Behind what cuDNN uses of the workspace, in backward: lse with heads first, as it reads it.
inline int64_t lse_offset_bytes(int64_t of_cudnn) { return round_up(of_cudnn, kTensorAlignment); }
// Of a backward of whole sequences. Kernels get theirs aligned to kAlignmentBytes.
inline int64_t whole_workspace_bytes(int64_t of_cudnn, const AttentionProblem& p) {
    const AttentionShape& s = p.shape;
    const int64_t lse = s.batch * s.seq * s.kv_heads * s.group * static_cast<int64_t>(sizeof(float));
    return lse_offset_bytes(of_cudnn) + lse + kPlanAlignment - kAlignmentBytes;
}

// A problem as equal ones, one after the other.
struct AttentionParts {
    AttentionProblem part;
    int64_t batches = 1, groups = 1;  // of the batch, and of each sequence's key heads
    int64_t rows = 1;                 // of the queries; `part` is the last of them, which has the most keys if it is causal
    int64_t bytes = 0;                // that cuDNN asks for

    // Of some queries.
    AttentionProblem part_of_rows(int64_t row) const {
        AttentionProblem p = part;
        if (p.causal) p.shape.kv_seq -= (rows - 1 - row) * p.shape.seq;
        return p;
    }
    // Where a part begins in tensors of tokens that are such a distance apart, of which a sequence has so many, and that have
    // `heads` of these heads for each key head: elements.
    int64_t begin_of_heads(int64_t batch, int64_t group, int64_t heads, int64_t tokens, int64_t stride) const {
        const AttentionShape& s = part.shape;
        return batch * s.batch * tokens * stride + group * s.kv_heads * heads * s.head_dim;
    }
    int64_t begin_of_queries(int64_t batch, int64_t group) const {
        return begin_of_heads(batch, group, part.shape.group, part.queries_of_row(), part.query_stride());
    }
    int64_t begin_of_keys(int64_t batch, int64_t group) const {
        return begin_of_heads(batch, group, 1, part.keys_of_row(), part.key_stride());
    }
    int64_t begin_of_results(int64_t batch, int64_t group) const {
        return begin_of_heads(batch, group, part.shape.group, part.queries_of_row(), part.result_stride());
    }
    // The same of the sums of rows, [batch, kv_heads, group, seq], of the part's queries.
    int64_t begin_of_sums(int64_t batch, int64_t group) const {
        const AttentionShape& s = part.shape;
        return (batch * s.batch * part.kv_heads_of_row() + group * s.kv_heads) * s.group * s.seq;
    }
};
// `bytes_of(problem)`: of cuDNN; nothing where it has no plan. Nothing: it has none for the whole. `rows_of_part`: parts of one key
// head have some of the queries, in multiples of this; 0: they have all.
template <class BytesOf>
std::optional<AttentionParts> parts_of(const AttentionProblem& whole, const BytesOf& bytes_of, int64_t rows_of_part = 0) {
    const std::optional<int64_t> of_whole = bytes_of(whole);
    if (!of_whole) return std::nullopt;
    AttentionParts out{whole, 1, 1, 1, *of_whole};
    if (out.bytes <= kPartBytes) return out;
    out.part.row_kv_heads = whole.shape.kv_heads;
    const auto divide = [&](int64_t AttentionShape::*by, int64_t AttentionParts::*count, int64_t unit) {
        const int64_t all = whole.shape.*by / unit;
        while (out.bytes > kPartBytes && out.*count < all) {
            do ++(out.*count);
            while (all % (out.*count) != 0);
            out.part.shape.*by = all / (out.*count) * unit;
            out.bytes = bytes_of(out.part).value_or(std::numeric_limits<int64_t>::max());
        }
    };
    divide(&AttentionShape::batch, &AttentionParts::batches, 1);
    divide(&AttentionShape::kv_heads, &AttentionParts::groups, 1);
    if (rows_of_part > 0 && whole.shape.seq % rows_of_part == 0)
        divide(&AttentionShape::seq, &AttentionParts::rows, rows_of_part);
    return out;
}

}  // namespace lockstep::kernels::cuda
