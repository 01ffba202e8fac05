// Which ops of attention cuDNN serves, and with what workspace: also for who only plans them (planned.h).
#pragma once

#include <limits>
#include <optional>

#include "base/round.h"
#include "kernels/cuda/attention_plans.h"
#include "kernels/cuda/gpu_kind.h"
#include "kernels/registry/attention.h"

namespace lockstep::kernels::cuda {

inline constexpr const char* kAttentionName = "cudnn";

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
    const int64_t heads = s.batch * s.kv_heads * s.group, rows = heads * s.seq;
    constexpr int64_t kFloat = sizeof(float);
    if (p.any_order) {
        const bool casts = !is_hopper && (kind != GpuKind::Blackwell || s.seq <= 128);
        const int64_t sums = rows * kFloat * (1 + s.head_dim * ((casts ? 2 : 1) + (s.group > 1 ? 1 : 0)));
        return sums + (is_hopper ? 256 : casts || s.group > 1 ? 128 : 0);
    }
    const int64_t scores = keeps_scores ? heads * round_up(s.seq, 64) * round_up(s.seq, 128) * 2 : 0;
    const int64_t keys_and_values = s.group > 1 ? 2 * rows * s.head_dim * (keeps_scores ? 2 : 4) : 0;
    const int64_t always = is_hopper ? 256 : scores + keys_and_values > 0 ? 128 : 0;
    return rows * kFloat + scores + keys_and_values + always;
}

// Behind what cuDNN uses of the workspace, in backward: lse with heads first, as it reads it.
inline int64_t lse_offset_bytes(int64_t of_cudnn) { return round_up(of_cudnn, kTensorAlignment); }
// Kernels get theirs aligned to kAlignmentBytes.
inline int64_t whole_workspace_bytes(int64_t of_cudnn, const AttentionProblem& p) {
    const AttentionShape& s = p.shape;
    const int64_t lse = p.backward ? s.batch * s.seq * s.kv_heads * s.group * static_cast<int64_t>(sizeof(float)) : 0;
    return lse_offset_bytes(of_cudnn) + lse + kPlanAlignment - kAlignmentBytes;
}

// A problem as equal ones, one after the other.
struct AttentionParts {
    AttentionProblem part;
    int64_t batches = 1, groups = 1;  // of the batch, and of each sequence's key heads
    int64_t bytes = 0;                // that cuDNN asks for

    // Where a part begins in tensors with `heads` of these heads for each key head, and such a distance between tokens: elements.
    int64_t begin_of_heads(int64_t batch, int64_t group, int64_t heads, int64_t stride) const {
        const AttentionShape& s = part.shape;
        return batch * s.batch * s.seq * stride + group * s.kv_heads * heads * s.head_dim;
    }
    int64_t begin_of_queries(int64_t batch, int64_t group) const {
        return begin_of_heads(batch, group, part.shape.group, part.query_stride());
    }
    int64_t begin_of_keys(int64_t batch, int64_t group) const { return begin_of_heads(batch, group, 1, part.key_stride()); }
    int64_t begin_of_results(int64_t batch, int64_t group) const {
        return begin_of_heads(batch, group, part.shape.group, part.result_stride());
    }
    // The same of the sums of rows, [batch, kv_heads, group, seq].
    int64_t begin_of_sums(int64_t batch, int64_t group) const {
        const AttentionShape& s = part.shape;
        return (batch * s.batch * part.kv_heads_of_row() + group * s.kv_heads) * s.group * s.seq;
    }
};
// `bytes_of(problem)`: of cuDNN; nothing where it has no plan. Nothing: it has none for the whole.
template <class BytesOf>
std::optional<AttentionParts> parts_of(const AttentionProblem& whole, const BytesOf& bytes_of) {
    const std::optional<int64_t> of_whole = bytes_of(whole);
    if (!of_whole) return std::nullopt;
    AttentionParts out{whole, 1, 1, *of_whole};
    if (out.bytes <= kPartBytes) return out;
    out.part.row_kv_heads = whole.shape.kv_heads;
    const auto divide = [&](int64_t AttentionShape::*by, int64_t AttentionParts::*count) {
        const int64_t all = whole.shape.*by;
        while (out.bytes > kPartBytes && out.*count < all) {
            do ++(out.*count);
            while (all % (out.*count) != 0);
            out.part.shape.*by = all / (out.*count);
            out.bytes = bytes_of(out.part).value_or(std::numeric_limits<int64_t>::max());
        }
    };
    divide(&AttentionShape::batch, &AttentionParts::batches);
    divide(&AttentionShape::kv_heads, &AttentionParts::groups);
    return out;
}

// In the module.
std::unique_ptr<Kernel> make_attention(const KernelContext& context, const AttentionProblem& problem);
std::unique_ptr<Kernel> make_attention_backward(const KernelContext& context, const AttentionProblem& problem);

// query: which operand the queries are, or the row of all.
template <class T>
AttentionProblem problem_of(const KernelContext& c, size_t query) {
    return {registry::attention_shape(c, query), kDtypeOf<T>, query == 1, c.op.attrs.contains("any_order")};
}

// cuDNN is not asked for shorter sequences, since it refuses some of them, nor for odd ones, which would set its own workspace,
// behind sums of 4 bytes a row, to odd addresses.
inline constexpr int64_t kLeastSeq = 64, kSeqMultiple = 8;

// Why cuDNN does not serve an op of attention.
enum class NotByCudnn { Served, SeveralDocuments, Dropout, Length, HeadDim, NoPlan, Workspace };

// B: registry.h's, without functions, and with workspace_bytes(problem): of cuDNN; nothing where it has no plan.
template <class B, class T>
NotByCudnn why_not_cudnn(const KernelContext& c, size_t query) {
    if (c.op.attrs.contains("dropout")) return NotByCudnn::Dropout;
    if (!c.op.attrs.contains("one_document")) return NotByCudnn::SeveralDocuments;
    const AttentionProblem problem = problem_of<T>(c, query);
    const AttentionShape& s = problem.shape;
    if (s.seq != s.kv_seq || s.seq < kLeastSeq || s.seq % kSeqMultiple != 0) return NotByCudnn::Length;
    if (s.head_dim % kHeadDimMultiple != 0 || s.head_dim > kMostHeadDim) return NotByCudnn::HeadDim;
    const std::optional<AttentionParts> parts = parts_of(problem, B::workspace_bytes);
    if (!parts) return NotByCudnn::NoPlan;
    return parts->bytes <= kAttentionWorkspaceBytes ? NotByCudnn::Served : NotByCudnn::Workspace;
}
template <class B, class T>
bool serves_attention(const KernelContext& c, size_t query) {
    return why_not_cudnn<B, T>(c, query) == NotByCudnn::Served;
}
template <class B, class T>
int64_t planned_bytes(const KernelContext& c, size_t query) {
    const AttentionProblem problem = problem_of<T>(c, query);
    return whole_workspace_bytes(parts_of(problem, B::workspace_bytes).value().bytes, problem);
}

template <class B, class T>
struct AttentionOf {  // q, k, v, pos, kv_pos, doc, kv_doc -> out, lse
    static constexpr registry::Family kFamily{"attention", "attention"};
    using Types = std::tuple<T, float>(T, T, T, int32_t);
    static bool serves(const KernelContext& c) { return serves_attention<B, T>(c, 0); }
    static int64_t workspace_bytes(const KernelContext& c) { return planned_bytes<B, T>(c, 0); }
    static std::unique_ptr<Kernel> make(const KernelContext& c) { return make_attention(c, problem_of<T>(c, 0)); }
};
template <class B, class T>
struct AttentionBackwardOf {  // d_out, q, k, v, pos, kv_pos, doc, kv_doc, out, lse -> d_q, d_k, d_v
    static constexpr registry::Family kFamily{"attention_backward", "attention_backward"};
    using Types = std::tuple<T, T, T>(T, T, T, T, int32_t, int32_t, int32_t, int32_t, T, float);
    static bool serves(const KernelContext& c) { return serves_attention<B, T>(c, 1); }
    static int64_t workspace_bytes(const KernelContext& c) { return planned_bytes<B, T>(c, 1); }
    static std::unique_ptr<Kernel> make(const KernelContext& c) { return make_attention_backward(c, problem_of<T>(c, 1)); }
};

template <class B, class T>
struct AttentionOfQkv : AttentionOf<B, T> {  // qkv, pos, kv_pos, doc, kv_doc -> out, lse
    using Types = std::tuple<T, float>(T, int32_t);
    static bool serves(const KernelContext& c) { return registry::is_packed(c, 0) && AttentionOf<B, T>::serves(c); }
};
template <class B, class T>
struct AttentionBackwardOfQkv : AttentionBackwardOf<B, T> {  // d_out, qkv, pos, kv_pos, doc, kv_doc, out, lse -> d_qkv
    using Types = T(T, T, int32_t, int32_t, int32_t, int32_t, T, float);
    static bool serves(const KernelContext& c) { return registry::is_packed(c, 1) && AttentionBackwardOf<B, T>::serves(c); }
};

template <class B>
std::vector<Registered> list_of_attention() {
    std::vector<Registered> r;
    const auto add = [&]<class T>(std::type_identity<T>) {
        registry::add_all<B, AttentionOf<B, T>, AttentionBackwardOf<B, T>, AttentionOfQkv<B, T>, AttentionBackwardOfQkv<B, T>>(r);
    };
    add(std::type_identity<Bf16>{}), add(std::type_identity<F16>{});
    return r;
}

}  // namespace lockstep::kernels::cuda
