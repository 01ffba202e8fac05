// Which ops of attention cuDNN serves, and with what workspace: also for who only plans them (planned.h).
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "base/round.h"
#include "kernels/cuda/attention_parts.h"
#include "kernels/cuda/attention_pieces.h"
#include "kernels/registry/attention.h"

namespace lockstep::kernels::cuda {

inline constexpr const char* kAttentionName = "cudnn";

// query: which operand the queries are, or the row of all.
template <class T>
AttentionProblem problem_of(const KernelContext& c, size_t query) {
    return {registry::attention_shape(c, query), kDtypeOf<T>, query == 1, c.op.attrs.contains("any_order")};
}

// What an op asks for, of one document whose queries may be divided over ranks.
struct DividedAttention {
    AttentionProblem all;  // a rank's queries, and the keys that it has
    ContextRanks ranks;

    // Whether keys are brought into plain order first.
    bool orders_keys() const { return !ranks.rings && ranks.head_tail; }
    AttentionProblem problem_of(const Piece& piece) const {
        AttentionProblem p = all;
        p.shape.seq = piece.queries, p.shape.kv_seq = piece.keys, p.causal = piece.causal;
        p.row_seq = all.shape.seq, p.row_kv_seq = all.shape.kv_seq;
        return p;
    }
};
// Nothing: the op does not say in which order the tokens of other ranks are.
template <class T>
std::optional<DividedAttention> divided_attention(const KernelContext& c, size_t query) {
    const mesh::AxisList& cut = c.in(query).placement.dims[1];
    DividedAttention d{problem_of<T>(c, query), {c.mesh.size(cut)}};
    ContextRanks& ranks = d.ranks;
    ranks.rings = !c.op.group.empty(), ranks.shift = c.op.attrs.contains("shift") ? c.op.integer("shift") : 0;
    const int64_t order = c.op.attrs.contains("head_tail") ? c.op.integer("head_tail") : 1;
    ranks.head_tail = ranks.count > 1 && order > 1;
    const bool is_of_these = !ranks.rings || c.op.group == cut, is_in_order = !ranks.head_tail || order == ranks.count;
    const int64_t keys = d.all.shape.seq * (ranks.rings ? 1 : ranks.count);
    if (!is_of_these || !is_in_order || d.all.shape.kv_seq != keys || ranks.shift >= ranks.count) return std::nullopt;
    return d;
}
// Of the rank that a kernel is made for.
inline std::vector<Piece> own_pieces(const KernelContext& c, size_t query, const DividedAttention& d) {
    return pieces_of(d.ranks, d.all.shape.seq, c.mesh.index(c.rank, c.in(query).placement.dims[1]));
}

// Parts of a block's backward have multiples of so many queries. With fewer, plans would be many, and start a training late.
inline constexpr int64_t kRowsOfPart = 256;
enum class Divides { Heads, AlsoRows };  // the parts of a backward
inline int64_t rows_of_part(Divides divides) { return divides == Divides::AlsoRows ? kRowsOfPart : 0; }

// What cuDNN asks for on the rank that needs most. Nothing: it has no plan.
template <class BytesOf>
std::optional<int64_t> most_bytes(const DividedAttention& d, const BytesOf& bytes_of, Divides divides) {
    int64_t most = 0;
    for (const Piece& piece : largest_pieces(d.ranks, d.all.shape.seq)) {
        const std::optional<AttentionParts> parts = parts_of(d.problem_of(piece), bytes_of, rows_of_part(divides));
        if (!parts) return std::nullopt;
        most = std::max(most, parts->bytes);
    }
    return most;
}

// Where what is not cuDNN's is in a workspace: bytes from its beginning.
struct BlockWorkspace {
    int64_t lse = 0;                   // of a part; in backward with heads first
    int64_t queries = 0;               // the block's result, or the gradients of its queries
    int64_t d_keys = 0, d_values = 0;  // gradients of a part
    int64_t keys = 0, values = 0;      // in plain order
    int64_t bytes = 0;                 // of all
};
inline BlockWorkspace block_workspace(const DividedAttention& d, int64_t of_cudnn, bool is_block) {
    const AttentionShape& s = d.all.shape;
    const int64_t heads = s.batch * s.seq * s.kv_heads * s.group, of_keys = s.batch * s.kv_seq * s.kv_heads * s.head_dim;
    BlockWorkspace w;
    const auto room = [&](bool is_used, int64_t bytes) {
        const int64_t begin = round_up(w.bytes, kTensorAlignment);
        w.bytes = begin + (is_used ? bytes : 0);
        return begin;
    };
    room(true, of_cudnn);
    w.lse = room(is_block, heads * static_cast<int64_t>(sizeof(float)));
    w.queries = room(is_block, heads * s.head_dim * bytes_of(d.all.type));
    w.d_keys = room(is_block && d.all.backward, of_keys * bytes_of(d.all.type));
    w.d_values = room(is_block && d.all.backward, of_keys * bytes_of(d.all.type));
    w.keys = room(d.orders_keys(), of_keys * bytes_of(d.all.type));
    w.values = room(d.orders_keys(), of_keys * bytes_of(d.all.type));
    w.bytes += kPlanAlignment - kAlignmentBytes;  // kernels get theirs aligned to kAlignmentBytes
    return w;
}

// In the module. T: how all but sums is stored.
template <class T>
std::unique_ptr<Kernel> make_attention(const KernelContext& context);
std::unique_ptr<Kernel> make_attention_backward(const KernelContext& context, const AttentionProblem& problem);
template <class T>
std::unique_ptr<Kernel> make_attention_block(const KernelContext& context);
template <class T>
std::unique_ptr<Kernel> make_attention_block_backward(const KernelContext& context);

// cuDNN is not asked for shorter sequences, since it refuses some of them, nor for odd ones, which would set its own workspace,
// behind sums of 4 bytes a row, to odd addresses.
inline constexpr int64_t kLeastSeq = 64, kSeqMultiple = 8;

// Why cuDNN does not serve an op of attention.
enum class NotByCudnn { Served, SeveralDocuments, Dropout, Window, Divided, Length, HeadDim, NoPlan, Workspace };

inline bool is_block(const KernelContext& c) {
    return c.op.kind == ir::kAttentionBlock || c.op.kind == ir::kAttentionBlockBackward;
}
inline Divides divides(const KernelContext& c) {
    return is_block(c) && c.op.integer("window") == 0 ? Divides::AlsoRows : Divides::Heads;
}

// B: registry.h's, without functions, and with workspace_bytes(problem): of cuDNN; nothing where it has no plan.
template <class B, class T>
NotByCudnn why_not_cudnn(const KernelContext& c, size_t query) {
    if (c.op.attrs.contains("dropout")) return NotByCudnn::Dropout;
    if (!c.op.attrs.contains("one_document")) return NotByCudnn::SeveralDocuments;
    const std::optional<DividedAttention> d = divided_attention<T>(c, query);
    if (!d) return NotByCudnn::Divided;
    const AttentionShape& s = d->all.shape;
    // Gradients of keys that several ranks add to are those of blocks.
    if (d->ranks.count > 1 && d->all.backward && !is_block(c)) return NotByCudnn::Divided;
    if (s.window > 0 && d->ranks.count > 1) return NotByCudnn::Window;
    for (const Piece& p : largest_pieces(d->ranks, s.seq)) {
        for (const int64_t tokens : {p.queries, p.keys}) {
            if (tokens < kLeastSeq || tokens % kSeqMultiple != 0) return NotByCudnn::Length;
        }
    }
    if (s.head_dim % kHeadDimMultiple != 0 || s.head_dim > kMostHeadDim) return NotByCudnn::HeadDim;
    const std::optional<int64_t> bytes = most_bytes(*d, B::workspace_bytes, divides(c));
    if (!bytes) return NotByCudnn::NoPlan;
    return *bytes <= kAttentionWorkspaceBytes ? NotByCudnn::Served : NotByCudnn::Workspace;
}
template <class B, class T>
bool serves_attention(const KernelContext& c, size_t query) {
    return why_not_cudnn<B, T>(c, query) == NotByCudnn::Served;
}
// Of an op that is served.
template <class B, class T>
int64_t planned_bytes(const KernelContext& c, size_t query) {
    const DividedAttention d = divided_attention<T>(c, query).value();
    return block_workspace(d, most_bytes(d, B::workspace_bytes, divides(c)).value(), is_block(c)).bytes;
}

template <class B, class T>
struct AttentionOf {  // q, k, v, pos, kv_pos, doc, kv_doc -> out, lse
    static constexpr registry::Family kFamily{"attention", "attention"};
    using Types = std::tuple<T, float>(T, T, T, int32_t);
    static bool serves(const KernelContext& c) { return serves_attention<B, T>(c, 0); }
    static int64_t workspace_bytes(const KernelContext& c) { return planned_bytes<B, T>(c, 0); }
    static std::unique_ptr<Kernel> make(const KernelContext& c) { return make_attention<T>(c); }
};
template <class B, class T>
struct AttentionBackwardOf {  // d_out, q, k, v, pos, kv_pos, doc, kv_doc, out, lse -> d_q, d_k, d_v
    static constexpr registry::Family kFamily{"attention_backward", "attention_backward"};
    using Types = std::tuple<T, T, T>(T, T, T, T, int32_t, int32_t, int32_t, int32_t, T, float);
    static bool serves(const KernelContext& c) { return serves_attention<B, T>(c, 1); }
    static int64_t workspace_bytes(const KernelContext& c) {
        const AttentionProblem problem = problem_of<T>(c, 1);
        return whole_workspace_bytes(parts_of(problem, B::workspace_bytes).value().bytes, problem);
    }
    static std::unique_ptr<Kernel> make(const KernelContext& c) { return make_attention_backward(c, problem_of<T>(c, 1)); }
};
// Last: the types of operands behind those that every block has.
template <class B, class T, class... Last>
struct AttentionBlockOf {  // q, k, v, pos, kv_pos, doc, kv_doc[, o, lse] -> o, lse
    static constexpr registry::Family kFamily{"attention_block", "attention_block"};
    using Types = std::tuple<float, float>(T, T, T, int32_t, int32_t, int32_t, int32_t, Last...);
    static bool serves(const KernelContext& c) { return serves_attention<B, T>(c, 0); }
    static int64_t workspace_bytes(const KernelContext& c) { return planned_bytes<B, T>(c, 0); }
    static std::unique_ptr<Kernel> make(const KernelContext& c) { return make_attention_block<T>(c); }
};
template <class B, class T>
struct AttentionBlockBackwardOf {  // d_out, q, k, v, pos, kv_pos, doc, kv_doc, out, lse[, d_q] -> d_q, d_k, d_v
    static constexpr registry::Family kFamily{"attention_block_backward", "attention_block_backward"};
    using Types = std::tuple<float, float, float>(T, T, T, T, int32_t, int32_t, int32_t, int32_t, T, float);
    static bool serves(const KernelContext& c) { return serves_attention<B, T>(c, 1); }
    static int64_t workspace_bytes(const KernelContext& c) { return planned_bytes<B, T>(c, 1); }
    static std::unique_ptr<Kernel> make(const KernelContext& c) { return make_attention_block_backward<T>(c); }
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
        registry::add_all<B, AttentionBlockOf<B, T>, AttentionBlockOf<B, T, float>, AttentionBlockBackwardOf<B, T>>(r);
    };
    add(std::type_identity<Bf16>{}), add(std::type_identity<F16>{});
    return r;
}

}  // namespace lockstep::kernels::cuda
