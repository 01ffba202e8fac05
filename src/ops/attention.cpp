// attention(q, k, v, pos, kv_pos, doc, kv_doc[, noise]) {scale, window[, one_document][, head_tail]} -> out, lse: softmax
// attention with causal and document masks that follow from the positions and document ids given as inputs, never from a rank's
// coordinate.
//   q, out [batch, seq, kv_heads, group, head_dim]; k, v [batch, kv_seq, kv_heads, head_dim]; lse [batch, seq, kv_heads,
//   group]. A query sees the keys of its document whose position is not larger than its own and, where window > 0, larger than
//   its own minus window: itself and the window - 1 before it (Mistral's sliding window).
//   With dropout (ops/dropout.h) probabilities are dropped after the softmax; an element's index is its key's position.
//   one_document = 1 promises that each sequence is one document, that its positions count from 0 and that the keys are those
//   of the same sequence. The mask is then the plain causal one, or the sliding one, and a kernel may leave positions and
//   documents unread. Queries that are divided over ranks, and keys, are in the order of mesh/order.h for `head_tail` ranks.
// attention_backward(d_out, q, k, v, pos, kv_pos, doc, kv_doc, out, lse[, noise]) -> dq, dk, dv (Dao et al. 2022, 2205.14135).
// Both also take rows that hold a token's queries, keys and values (passes/pack_attention), without dropout and with the
// sequences whole on a rank; its gradient is such a row, too:
//   attention(qkv [batch, seq, qkv, kv_heads, head_dim], pos, kv_pos, doc, kv_doc) -> out, lse
//   attention_backward(d_out, qkv, pos, kv_pos, doc, kv_doc, out, lse) -> d_qkv
// One block of a ring of ranks, each of which has a part of the keys (Liu et al. 2023, 2310.01889): Op::group are the ring's
// sub-axes, and the keys are those of the rank `shift` places before. `hops` blocks are the whole.
//   attention_block(q, k, v, pos, kv_pos, doc, kv_doc[, noise][, o, lse]) {shift, hops, scale, window[, one_document]
//   [, head_tail]} -> o, lse: both float32, of the keys so far. Behind the first block, o and lse are operands and results in
//   one place. A query that sees nothing has o = 0 and lse = -inf; another block may start from that.
//   attention_block_backward(d_out, q, k, v, pos, kv_pos, doc, kv_doc, out, lse[, noise][, dq]) -> dq, dk, dv: all float32. out
//   and lse are those of all blocks. Behind the first block, dq is added to in its place; dk and dv are of this block's keys.
// append(cache [batch, kv_seq, ...], x [batch, seq, ...], pos [batch, seq]) -> cache, in place: the token of position p becomes
//   row p of its sequence. A negative position, or one past the cache's end, is written nowhere: padding of a step.
#include "ops/dropout.h"
#include "ops/rope.h"
#include "ops/shapes.h"

namespace lockstep::ops {
namespace {

// Where an op of attention has its operands; `queries`: where it has q, or the row of all.
struct Operands {
    bool packed;
    size_t queries, positions, keys;  // keys: a tensor [batch, kv_seq, ..]
    Operands(const Routine& r, const Op& op, size_t first)
        : packed(op.in.size() > first && is_packed_qkv(r, op.in[first])),
          queries(first),
          positions(first + (packed ? 1 : 3)),
          keys(packed ? positions + 1 : first + 1) {}
};

// Multiply-adds of one score matrix times 2: batch x seq x heads x head_dim, locally, with all keys, also where other ranks
// have some of them. out: [batch, seq, heads.., head_dim].
double score_flops(const mesh::Mesh& mesh, const Routine& r, TensorId out, TensorId keys) {
    return 2.0 * static_cast<double>(ir::local_elements(mesh, r, r.tensors[out])) *
           static_cast<double>(r.dims[dims_of(r, keys)[1]].size);
}

OpRule append_rule() {
    OpRule append;
    append.name = ir::kAppend;
    append.operands = 3, append.results = 1;
    append.memory = {.rewrites = {{0, 0, true}}};
    append.check = [](const Routine& rt, const Op& op) -> std::string {
        if (op.in[0] != op.out[0]) return "writes where it reads: its result is its first operand";
        const std::vector<DimId>&cache = dims_of(rt, op.in[0]), &x = dims_of(rt, op.in[1]), &pos = dims_of(rt, op.in[2]);
        if (rt.tensors[op.in[2]].dtype != Dtype::I32) return "operand 2 holds positions, int32";
        const bool alike = cache.size() == x.size() && x.size() >= 2 && cache[0] == x[0] &&
                           std::equal(cache.begin() + 2, cache.end(), x.begin() + 2);
        if (!alike || pos.size() != 2 || pos[0] != x[0] || pos[1] != x[1])
            return "the cache is [batch, kv_seq, ...], the new rows [batch, seq, ...] and their positions [batch, seq]";
        return "";
    };
    append.sharding = {.unsplit = with_roles({DimRole::Seq, DimRole::KvSeq})};
    append.flops = [](const mesh::Mesh&, const Routine&, const Op&) { return Flops{}; };
    return append;
}

// Of the keys, those that a query would see without the causal mask: all, or a window.
double window_share(const Routine& r, const Op& op, TensorId keys) {
    const auto n = static_cast<double>(r.dims[dims_of(r, keys)[1]].size), window = static_cast<double>(op.integer("window"));
    return window > 0 ? std::min(1.0, window / n) : 1.0;
}
// What of a query-key matrix is not masked: half of it where attention is causal, less where a window slides.
double visible_share(const Routine& r, const Op& op, TensorId keys) {
    const double share = window_share(r, op, keys);
    return share - share * share / 2;
}

std::string check_noise(const Routine& rt, const Op& op, size_t operands) {
    if (op.in.size() != operands + (has_dropout(op) ? 1 : 0))
        return fmt::format("takes {} operands, and noise where it drops", operands);
    if (!has_dropout(op)) return "";
    return rt.tensors[op.in.back()].dtype == Dtype::I32 ? has(op, {"rng_key"}) : "the noise is int32";
}

bool has_as_many_keys(const Routine& rt, TensorId q, TensorId k) {
    const std::vector<DimId>&queries = dims_of(rt, q), &keys = dims_of(rt, k);
    return queries.size() == 5 && keys.size() >= 2 && rt.dims[queries[1]].size == rt.dims[keys[1]].size;
}
std::string check_one_document(const Routine& rt, const Op& op, TensorId q, TensorId k) {
    if (op.attrs.contains("head_tail") && op.integer("head_tail") < 1) return "head_tail is a number of ranks";
    if (!op.attrs.contains("one_document")) return "";
    if (op.integer("one_document") != 1) return "one_document is 1 or left out";
    return has_as_many_keys(rt, q, k) ? "" : "one_document asks for as many keys as queries";
}
// out: of forward, or its gradient.
std::string check_packed(const Routine& rt, const Op& op, const Operands& at, TensorId out) {
    if (has_dropout(op)) return "queries, keys and values in one row have no dropout";
    const std::vector<DimId>&qkv = dims_of(rt, op.in[at.queries]), &o = dims_of(rt, out);
    const bool fits = qkv.size() == 5 && o.size() == 5 && o[0] == qkv[0] && o[1] == qkv[1] && o[2] == qkv[3] && o[4] == qkv[4] &&
                      rt.dims[qkv[2]].size == rt.dims[o[3]].size + 2;
    if (!fits) return "rows [batch, seq, qkv = group + 2, kv_heads, head_dim] give [batch, seq, kv_heads, group, head_dim]";
    if (!has_as_many_keys(rt, op.in[at.queries], op.in[at.keys])) return "rows of all have as many keys as queries";
    return check_one_document(rt, op, op.in[at.queries], op.in[at.keys]);
}

// Keys that are blocks of the sequence may be split as it is.
std::vector<DimId> unsplit_dims(const Routine& rt) {
    std::vector<DimId> dims = {rt.dim(DimRole::HeadDim)};
    const DimId keys = rt.dim(DimRole::KvSeq);
    if (keys >= 0 && rt.dims[keys].of < 0) dims.push_back(keys);
    return dims;
}

// Two products forward, five backward (scores again). What the masks hide is not executed.
Flops forward_flops(const mesh::Mesh& m, const Routine& r, const Op& op, TensorId out, TensorId keys) {
    const double s = score_flops(m, r, out, keys);
    return {2 * s * window_share(r, op, keys), 2 * s * visible_share(r, op, keys)};
}
Flops backward_flops(const mesh::Mesh& m, const Routine& r, const Op& op, TensorId out, TensorId keys) {
    const double s = score_flops(m, r, out, keys);
    return {4 * s * window_share(r, op, keys), 5 * s * visible_share(r, op, keys)};
}
Flops of_one_hop(const Op& op, Flops all) {
    const auto hops = static_cast<double>(op.integer("hops"));
    return {all.model / hops, all.executed / hops};
}

bool carries(const Op& op) { return op.integer("shift") > 0; }

// `carried` results come last among the operands, in their order.
std::vector<Rewrite> rewrites_of_carry(const Op& op, int carried) {
    std::vector<Rewrite> rewrites;
    const int first = static_cast<int>(op.in.size()) - carried;
    for (int i = 0; carries(op) && i < carried; ++i) rewrites.push_back({i, first + i, true});
    return rewrites;
}

// Operands `query` and on: q, k, v, pos, kv_pos, doc, kv_doc. fixed: operands that every block has.
std::string check_block(const Routine& rt, const Op& op, size_t query, size_t fixed, size_t carried) {
    const int64_t shift = op.integer("shift"), hops = op.integer("hops");
    if (hops < 1 || shift < 0 || shift >= hops) return fmt::format("its shift {} is not below its hops {}", shift, hops);
    const size_t noise = has_dropout(op) ? 1 : 0, carry = carries(op) ? carried : 0;
    if (op.in.size() != fixed + noise + carry)
        return fmt::format("takes {} operands, noise where it drops, and behind the first block the {} results that it goes on",
                           fixed, carried);
    for (size_t i = 0; i < carry; ++i) {
        if (op.in[fixed + noise + i] != op.out[i]) return fmt::format("goes on with result {} elsewhere than it reads it", i);
    }
    if (noise > 0 && rt.tensors[op.in[fixed]].dtype != Dtype::I32) return "the noise is int32";
    for (size_t i = query + 3; i < query + 7; ++i) {
        if (rt.tensors[op.in[i]].dtype != Dtype::I32) return "positions and documents are int32";
    }
    const std::vector<DimId>&q = dims_of(rt, op.in[query]), &k = dims_of(rt, op.in[query + 1]);
    const bool fits = q.size() == 5 && k.size() == 4 && k[0] == q[0] && k[2] == q[2] && k[3] == q[4];
    if (!fits) return "queries are [batch, seq, kv_heads, group, head_dim], keys [batch, kv_seq, kv_heads, head_dim]";
    const auto rows = [&](size_t i, const std::vector<DimId>& of) {
        return dims_of(rt, op.in[i]) == std::vector<DimId>{of[0], of[1]} ? std::string()
                                                                         : fmt::format("operand {} is one number a token", i);
    };
    return first_of({same_dims(rt, op.in[query + 1], op.in[query + 2]), rows(query + 3, q), rows(query + 4, k),
                     rows(query + 5, q), rows(query + 6, k), noise > 0 ? has(op, {"rng_key"}) : "",
                     noise > 0 ? rows(fixed, q) : "", check_one_document(rt, op, op.in[query], op.in[query + 1])});
}
std::string check_lse(const Routine& rt, TensorId q, TensorId lse) {
    const std::vector<DimId>& dims = dims_of(rt, q);
    return std::equal(dims.begin(), dims.end() - 1, dims_of(rt, lse).begin(), dims_of(rt, lse).end())
               ? ""
               : fmt::format("{} lacks the dim head_dim", rt.tensors[lse].name);
}

std::vector<OpRule> attention_block_rules() {
    const std::vector<Attribute> attrs = {{"shift", AttrType::Integer},
                                          {"hops", AttrType::Integer},
                                          {"scale", AttrType::Number},
                                          {"window", AttrType::Integer},
                                          {"one_document", AttrType::Integer, true},
                                          {"head_tail", AttrType::Integer, true},
                                          {"dropout", AttrType::Number, true},
                                          {"rng_key", AttrType::Integer, true}};
    const auto unsplit = [](const Routine& rt, const Op&) { return unsplit_dims(rt); };

    OpRule forward;
    forward.name = ir::kAttentionBlock;
    forward.results = 2;
    forward.attrs = attrs;
    forward.check = [](const Routine& rt, const Op& op) {
        const std::string wrong = check_block(rt, op, 0, 7, 2);
        return wrong.empty() ? first_of({same_dims(rt, op.in[0], op.out[0]), check_lse(rt, op.in[0], op.out[1])}) : wrong;
    };
    forward.sharding = {.unsplit = unsplit, .aligned = true};
    forward.precision = {.wide_in = {7, 8, 9}, .wide_out = {0, 1}};  // o and lse: 7 is noise where there is some
    forward.memory = {.rewrites_by_op = [](const Op& op) { return rewrites_of_carry(op, 2); }};
    forward.queries = 0;
    forward.kept = {.operands = {0, 1, 2}};
    forward.flops = [](const mesh::Mesh& m, const Routine& r, const Op& op) {
        return of_one_hop(op, forward_flops(m, r, op, op.out[0], op.in[1]));
    };

    OpRule backward;
    backward.name = ir::kAttentionBlockBackward;
    backward.results = 3;
    backward.attrs = attrs;
    backward.attrs.push_back({"any_order", AttrType::Integer, true});
    backward.check = [](const Routine& rt, const Op& op) {
        const std::string wrong = check_block(rt, op, 1, 10, 1);
        if (!wrong.empty()) return wrong;
        return first_of({same_dims(rt, op.in[0], op.in[1]), same_dims(rt, op.in[8], op.in[1]), check_lse(rt, op.in[1], op.in[9]),
                         same_dims(rt, op.out[0], op.in[1]), same_dims(rt, op.out[1], op.in[2]),
                         same_dims(rt, op.out[2], op.in[2])});
    };
    backward.sharding = {.unsplit = unsplit, .aligned = true};
    backward.precision = {.wide_in = {9, 10, 11}, .wide_out = {0, 1, 2}};  // lse and dq: 10 is noise where there is some
    backward.memory = {.rewrites_by_op = [](const Op& op) { return rewrites_of_carry(op, 1); }};
    backward.queries = 1;
    backward.flops = [](const mesh::Mesh& m, const Routine& r, const Op& op) {
        return of_one_hop(op, backward_flops(m, r, op, op.in[0], op.in[2]));
    };
    return {forward, backward};
}

}  // namespace

std::vector<OpRule> attention_rules() {
    // Of rows of all also the list that they are, and the sequence, whose keys each query sees.
    const auto unsplit = [](size_t first) {
        return [first](const Routine& rt, const Op& op) {
            std::vector<DimId> dims = unsplit_dims(rt);
            if (Operands(rt, op, first).packed) dims.insert(dims.end(), {rt.dim(DimRole::Qkv), rt.dim(DimRole::Seq)});
            return dims;
        };
    };
    const std::vector<Attribute> attrs = {{"scale", AttrType::Number},
                                          {"window", AttrType::Integer},
                                          {"one_document", AttrType::Integer, true},
                                          {"head_tail", AttrType::Integer, true},
                                          {"dropout", AttrType::Number, true},
                                          {"rng_key", AttrType::Integer, true}};

    OpRule forward;
    forward.name = ir::kAttention;
    forward.results = 2;
    forward.check = [](const Routine& rt, const Op& op) {
        const Operands at(rt, op, 0);
        if (at.packed && (op.in.size() != 5 || op.out.size() != 2)) return std::string("takes 5 operands if they are one row");
        if (at.packed) return check_packed(rt, op, at, op.out[0]);
        if (const std::string wrong = check_noise(rt, op, 7); !wrong.empty()) return wrong;
        return first_of({same_dims(rt, op.in[0], op.out[0]), same_dims(rt, op.in[1], op.in[2]),
                         check_one_document(rt, op, op.in[0], op.in[1])});
    };
    forward.derivative = [](Builder& b, const Op& op, std::span<const TensorId> dy) {
        const Routine& r = b.routine();
        const Operands at(r, op, 0);
        std::vector<TensorId> in = {dy[0]};
        in.insert(in.end(), op.in.begin(), op.in.begin() + static_cast<long>(at.positions) + 4);
        in.insert(in.end(), op.out.begin(), op.out.end());
        if (has_dropout(op)) in.push_back(op.in[7]);
        std::vector<Result> gradients;
        for (size_t i = 0; i < at.positions; ++i) gradients.push_back(part_of(r, op.in[i]));
        std::vector<TensorId> out = b.op(ir::kAttentionBackward, in, gradients, op.attrs);
        out.resize(op.in.size(), -1);
        return out;
    };
    forward.attrs = attrs;
    forward.sharding = {.unsplit = unsplit(0), .takes_qkv_apart = true, .meets = true};
    forward.precision = {.wide_out = {1}};
    forward.queries = 0;
    forward.kept = {.operands = {0, 1, 2}, .results = {0}};
    forward.flops = [](const mesh::Mesh& m, const Routine& r, const Op& op) {
        return forward_flops(m, r, op, op.out[0], op.in[Operands(r, op, 0).keys]);
    };

    OpRule backward;
    backward.name = ir::kAttentionBackward;
    backward.check = [](const Routine& rt, const Op& op) {
        const Operands at(rt, op, 1);
        if (at.packed && (op.in.size() != 8 || op.out.size() != 1)) return std::string("gives one row for one row");
        if (at.packed) return first_of({check_packed(rt, op, at, op.in[0]), same_dims(rt, op.in[1], op.out[0])});
        if (op.out.size() != 3) return std::string("gives the gradients of queries, keys and values");
        if (const std::string wrong = check_noise(rt, op, 10); !wrong.empty()) return wrong;
        return first_of({same_dims(rt, op.out[0], op.in[1]), same_dims(rt, op.out[1], op.in[2]),
                         check_one_document(rt, op, op.in[1], op.in[2])});
    };
    backward.sharding = {.unsplit = unsplit(1), .linear = {0}, .takes_qkv_apart = true, .meets = true};
    backward.precision = {.wide_in = {7, 9}};  // lse: of one row, or of three tensors, where 7 is kv_doc
    backward.queries = 1;
    backward.attrs = attrs;
    backward.attrs.push_back({"any_order", AttrType::Integer, true});
    backward.flops = [](const mesh::Mesh& m, const Routine& r, const Op& op) {
        return backward_flops(m, r, op, op.in[0], op.in[Operands(r, op, 1).keys]);
    };
    std::vector<OpRule> rules = attention_block_rules();
    rules.insert(rules.begin(), {forward, backward, append_rule()});
    return rules;
}

}  // namespace lockstep::ops
