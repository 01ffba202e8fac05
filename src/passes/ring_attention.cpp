#include "passes/ring_attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "ops/builder.h"
#include "ops/verify_ring.h"

namespace lockstep::passes {
namespace {

using ir::Op;
using ir::Routine;
using ir::TensorId;

// The operands of attention that travel, from the queries on: keys, values, their positions and documents.
constexpr std::array<size_t, 4> kTravels = {1, 2, 4, 6};
using Block = std::array<TensorId, kTravels.size()>;
using Gradients = std::array<TensorId, 2>;  // of keys and values

Dtype wide(Dtype dtype) { return dtype == Dtype::F64 ? Dtype::F64 : Dtype::F32; }

// In a ring, and where gradients of keys and values are wider than the queries.
bool is_expanded(const Routine& r, const Op& op) {
    if (op.kind == ir::kAttention) return !op.group.empty();
    if (op.kind != ir::kAttentionBackward || op.out.size() != 3) return false;
    return !op.group.empty() || r.tensors[op.out[1]].dtype != r.tensors[op.in[1]].dtype;
}

class RingExpander {
public:
    RingExpander(const ir::Program& program, Routine& r)
        : mesh_(program.mesh), head_tail_(program.head_tail), r_(r), b_(r), old_(std::move(r.ops)) {}

    void run() {
        r_.ops.clear();
        for (Op& op : old_) {
            if (!is_expanded(r_, op)) r_.ops.push_back(std::move(op));
            else if (op.kind == ir::kAttention) expand_forward(op);
            else expand_backward(op);
        }
    }

private:
    TensorId make(const std::string& name, TensorId like) { return make(name, like, r_.tensors[like].dtype); }
    TensorId make(const std::string& name, TensorId like, Dtype dtype) {
        ir::Tensor t = r_.tensors[like];
        t.name = b_.fresh(name);
        t.dtype = dtype;
        t.port = -1;
        t.source.clear();
        r_.tensors.push_back(std::move(t));
        return static_cast<TensorId>(r_.tensors.size() - 1);
    }
    // `to`, or a temporary like it of the wide type.
    TensorId wide_of(TensorId to) {
        const Dtype type = r_.tensors[to].dtype;
        return type == wide(type) ? to : make(r_.tensors[to].name + ".wide", to, wide(type));
    }

    Op& emit(const Op& composite, std::string_view kind, std::vector<TensorId> in, std::vector<TensorId> out, ir::Attrs attrs) {
        Op op;
        op.kind = kind;
        op.in = std::move(in), op.out = std::move(out);
        op.attrs = std::move(attrs);
        if (composite.attrs.contains("recomputed")) op.attrs["recomputed"] = int64_t{1};
        r_.ops.push_back(std::move(op));
        return r_.ops.back();
    }
    void cast(const Op& composite, TensorId from, TensorId to) {
        if (from != to) emit(composite, ir::kCast, {from}, {to}, {});
    }
    // One launch, at the same time as what follows.
    Op& permute(const Op& composite, std::vector<TensorId> in, std::vector<TensorId> out, int64_t by) {
        Op& op = emit(composite, name_of(mesh::Collective::Permute), std::move(in), std::move(out),
                      {{"by", by}, {"aside", int64_t{1}}});
        op.group = composite.group;
        return op;
    }

    int64_t ranks_of(const Op& op) const { return mesh_.size(op.group); }
    // How many blocks a rank meets. `keys` has their sequence.
    int64_t hops(const Op& op, TensorId keys) const {
        const int64_t n = ranks_of(op), rows = r_.dims[static_cast<size_t>(r_.tensors[keys].dims[1])].size / n;
        return ops::blocks_in_sight(n, rows, op.integer("window"), head_tail_ == 1);
    }
    ir::Attrs attrs_of_block(const Op& op, int64_t shift, int64_t hops) const {
        ir::Attrs attrs = op.attrs;
        attrs["shift"] = shift, attrs["hops"] = hops;
        if (head_tail_ > 1 && !op.group.empty()) attrs["head_tail"] = head_tail_;
        return attrs;
    }
    Block block_of(const Op& op, size_t queries) const {
        Block block;
        for (size_t i = 0; i < block.size(); ++i) block[i] = op.in[queries + kTravels[i]];
        return block;
    }
    // The operands of the composite, with another block of keys.
    static std::vector<TensorId> with_block(const Op& op, size_t queries, const Block& block) {
        std::vector<TensorId> in = op.in;
        for (size_t i = 0; i < block.size(); ++i) in[queries + kTravels[i]] = block[i];
        return in;
    }
    // Where the block that travels arrives: the `shift`-th of the ring.
    Block make_block(const Block& own, int64_t shift) {
        Block out;
        for (size_t i = 0; i < own.size(); ++i) out[i] = make(fmt::format("{}.from.{}", r_.tensors[own[i]].name, shift), own[i]);
        return out;
    }

    void expand_forward(const Op& op) {
        const Block own = block_of(op, 0);
        const int64_t n_hops = hops(op, own[0]);
        const TensorId o = wide_of(op.out[0]), lse = op.out[1];
        Block here = own;
        for (int64_t i = 0; i < n_hops; ++i) {
            Block next = here;
            if (i + 1 < n_hops) {
                next = make_block(own, i + 1);
                permute(op, {here.begin(), here.end()}, {next.begin(), next.end()}, 1).note =
                    i == 0 ? "the keys of the others, around the ring, during attention to those that have come" : "";
            }
            std::vector<TensorId> in = with_block(op, 0, here);
            if (i > 0) in.insert(in.end(), {o, lse});
            emit(op, ir::kAttentionBlock, std::move(in), {o, lse}, attrs_of_block(op, i, n_hops)).group = op.group;
            here = next;
        }
        cast(op, o, op.out[0]);
    }

    void expand_backward(const Op& op) {
        const Block own = block_of(op, 1);
        const bool rings = !op.group.empty();
        const int64_t n_hops = rings ? hops(op, own[0]) : 1;
        const int64_t home = rings ? (ranks_of(op) - n_hops + 1) % ranks_of(op) : 0;
        const TensorId dq = wide_of(op.out[0]);
        const Gradients results = {wide_of(op.out[1]), wide_of(op.out[2])};
        const auto numbered = [&](size_t g, const char* word, int64_t i) {
            return make(fmt::format("{}.{}{}", r_.tensors[op.out[g + 1]].name, word, i), results[g]);
        };
        Block here = own;
        Gradients sum{};  // of the blocks so far, for the keys that are here
        for (int64_t i = 0; i < n_hops; ++i) {
            Block next = here;
            Gradients arrived{};
            std::vector<TensorId> from, to;
            if (i + 1 < n_hops) {
                next = make_block(own, i + 1);
                from.assign(here.begin(), here.end()), to.assign(next.begin(), next.end());
            }
            if (i > 0) {
                for (size_t g = 0; g < arrived.size(); ++g) arrived[g] = numbered(g, "from.", i);
                from.insert(from.end(), sum.begin(), sum.end()), to.insert(to.end(), arrived.begin(), arrived.end());
            }
            if (!from.empty())
                permute(op, std::move(from), std::move(to), 1).note =
                    i == 0 ? "keys go around the ring as in forward, and the sums of their gradients behind them" : "";
            const bool is_last = i + 1 == n_hops;
            const auto result = [&](size_t g) { return is_last && home == 0 ? results[g] : numbered(g, "sum.", i); };
            Gradients made;
            for (size_t g = 0; g < made.size(); ++g) made[g] = i == 0 ? result(g) : numbered(g, "", i);
            std::vector<TensorId> in = with_block(op, 1, here);
            if (i > 0) in.push_back(dq);
            emit(op, ir::kAttentionBlockBackward, std::move(in), {dq, made[0], made[1]}, attrs_of_block(op, i, n_hops)).group =
                op.group;
            for (size_t g = 0; g < made.size(); ++g) {
                sum[g] = i == 0 ? made[g] : result(g);
                if (i > 0) emit(op, ir::kAdd, {arrived[g], made[g]}, {sum[g]}, {});
            }
            here = next;
        }
        if (home > 0) permute(op, {sum.begin(), sum.end()}, {results.begin(), results.end()}, home).note = "the sums go home";
        cast(op, dq, op.out[0]);
        for (size_t g = 0; g < results.size(); ++g) cast(op, results[g], op.out[g + 1]);
    }

    const mesh::Mesh& mesh_;
    const int64_t head_tail_;
    Routine& r_;
    ops::Builder b_;
    std::vector<Op> old_;
};

}  // namespace

ir::Program ring_attention(ir::Program program) {
    for (Routine& r : program.routines) {
        const bool of_sequences = r.entry == ir::EntryKind::Train || r.entry == ir::EntryKind::Eval;
        const auto expands = [&](const Op& op) { return is_expanded(r, op); };
        if (of_sequences && std::any_of(r.ops.begin(), r.ops.end(), expands)) RingExpander(program, r).run();
    }
    return program;
}

}  // namespace lockstep::passes
