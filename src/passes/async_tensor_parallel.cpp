#include "passes/async_tensor_parallel.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "ops/builder.h"
#include "ops/einsum.h"
#include "passes/part_routines.h"

namespace lockstep::passes {
namespace {

using ir::DimId;
using ir::Op;
using ir::Routine;
using ir::TensorId;

bool has(const std::vector<DimId>& dims, DimId dim) { return std::find(dims.begin(), dims.end(), dim) != dims.end(); }
int64_t position(const std::vector<DimId>& dims, DimId dim) { return std::find(dims.begin(), dims.end(), dim) - dims.begin(); }

bool is_aside(const Op& op) { return op.attrs.contains("aside"); }

// Rewrites one routine's ops, and marks those that overlap with the others.
class Cutter {
public:
    Cutter(const mesh::Mesh& mesh, Routine& r) : mesh_(mesh), r_(r), b_(r), old_(std::move(r.ops)) {
        gather_scales_first();
        made_by_.assign(r.tensors.size(), -1);
        readers_.resize(r.tensors.size());
        for (size_t i = 0; i < old_.size(); ++i) {
            for (TensorId t : old_[i].out) made_by_[static_cast<size_t>(t)] = static_cast<int>(i);
            for (TensorId t : old_[i].in) readers_[static_cast<size_t>(t)].push_back(i);
        }
        moved_to_.resize(old_.size());
        for (size_t i = 0; i < old_.size(); ++i) moved_to_[i] = static_cast<int>(i);
    }

    void run() {
        r_.ops.clear();
        for (size_t i = 0; i < old_.size(); ++i) find_gather(i);
        for (size_t i = 0; i < old_.size(); ++i) find_scatter(i);
        if (gathers_.empty() && scatters_.empty()) {
            r_.ops = std::move(old_);
            return;
        }
        emit_scatters(-1);
        for (size_t i = 0; i < old_.size(); ++i) {
            if (const auto at = gathers_.find(i); at != gathers_.end()) emit_gather(i, at->second);
            else if (const auto sum = scatters_.find(i); sum != scatters_.end()) emit_sum(i, sum->second);
            else if (!replaced_.contains(i)) r_.ops.push_back(old_[i]);
            emit_scatters(static_cast<int>(i));
        }
        move_gathers_ahead();
        move_sums_to_makers();
    }

private:
    struct Scatter {
        std::set<size_t> cone;  // the products, and the sums of them, that make the operand
        int ready = -1;         // the op behind which all that they read is there
        std::vector<TensorId> arrived;
    };

    // Scales are few: where they are gathered as their codes are, each product in blocks finds them all.
    void gather_scales_first() {
        const auto made_with = [&](TensorId codes) -> TensorId {
            for (const Op& op : old_) {
                if ((op.kind == ir::kToFloat8 || op.kind == ir::kToBlocks) && op.out[0] == codes) return op.out[1];
            }
            return -1;
        };
        for (size_t i = 0; i < old_.size(); ++i) {
            if (!ir::is_collective(old_[i], mesh::Collective::AllGather)) continue;
            const TensorId scale = made_with(old_[i].in[0]);
            const auto gathers = [&](const Op& op) {
                return ir::is_collective(op, mesh::Collective::AllGather) && op.in == std::vector<TensorId>{scale};
            };
            const auto at = old_.begin() + static_cast<long>(i), found = std::find_if(at, old_.end(), gathers);
            if (scale < 0 || found == old_.end()) continue;
            std::rotate(at, found, found + 1);
            ++i;
        }
    }

    // The op, or what has taken its place, is at or before the op `by` of the old list.
    // Values of ports are there from the start.
    bool is_there(TensorId t, int by) const {
        const int maker = made_by_[static_cast<size_t>(t)];
        return maker < 0 || moved_to_[static_cast<size_t>(maker)] < by;
    }

    // Does each row of the result, along `dim`, come from the same row of one factor, with the scale of its block?
    bool is_by_rows(const Op& op, DimId dim, int64_t members) const {
        if (op.kind != ir::kEinsum && op.kind != ir::kScaledEinsum) return false;
        if (!ops::is_product(r_, op) || !has(r_.tensors[op.out[0]].dims, dim)) return false;
        for (size_t i = 2; i < op.in.size(); ++i) {
            const std::optional<size_t> at = groups_of(op.in[i], dim);
            if (at && groups_here(op.in[i], *at) > 1 && groups_here(op.in[i], *at) % members != 0) return false;
        }
        return has(r_.tensors[op.in[0]].dims, dim) != has(r_.tensors[op.in[1]].dims, dim);
    }
    // Where a scale has groups of the dim's elements, and how many a rank has.
    std::optional<size_t> groups_of(TensorId scale, DimId dim) const {
        const std::vector<DimId>& dims = r_.tensors[scale].dims;
        const auto at =
            std::find_if(dims.begin(), dims.end(), [&](DimId d) { return r_.dims[static_cast<size_t>(d)].of == dim; });
        return at == dims.end() ? std::nullopt : std::optional(static_cast<size_t>(at - dims.begin()));
    }
    int64_t groups_here(TensorId scale, size_t at) const {
        return ir::local_size(mesh_, r_, r_.tensors[scale], static_cast<int>(at));
    }

    bool is_cut_by(const Op& op, mesh::Collective kind) const {
        return ir::is_collective(op, kind) && op.in.size() == 1 && op.accumulate.empty() && mesh_.size(op.group) > 1;
    }
    DimId dim_of(const Op& op) const { return r_.tensors[op.in[0]].dims[static_cast<size_t>(op.integer("dim"))]; }

    void find_gather(size_t i) {
        const Op& op = old_[i];
        if (!is_cut_by(op, mesh::Collective::AllGather) || r_.tensors[op.out[0]].port >= 0) return;
        std::vector<size_t> products;
        for (size_t reader : readers_[static_cast<size_t>(op.out[0])]) {
            const Op& product = old_[reader];
            if (!is_by_rows(product, dim_of(op), mesh_.size(op.group)) || !product.accumulate.empty()) continue;
            const auto is_whole = [&](TensorId t) { return t == op.out[0]; };
            const bool others_are_there = std::all_of(product.in.begin(), product.in.end(), [&](TensorId t) {
                return is_whole(t) || is_there(t, static_cast<int>(i));
            });
            if (std::count_if(product.in.begin(), product.in.end(), is_whole) == 1 && others_are_there)
                products.push_back(reader);
        }
        if (products.empty()) return;
        for (size_t p : products) replaced_.insert(p), moved_to_[p] = static_cast<int>(i);
        gathers_[i] = std::move(products);
    }

    void find_scatter(size_t i) {
        const Op& op = old_[i];
        if (!is_cut_by(op, mesh::Collective::ReduceScatter)) return;
        Scatter s;
        if (!add_to_cone(op.in[0], op, i, dim_of(op), s)) return;
        for (size_t c : s.cone) replaced_.insert(c);
        scatters_[i] = std::move(s);
    }

    // What makes `t`, which `scatter` sums, for the op `reader` and no other.
    bool add_to_cone(TensorId t, const Op& scatter, size_t reader, DimId dim, Scatter& s) {
        const int maker = made_by_[static_cast<size_t>(t)];
        if (maker < 0 || r_.tensors[t].port >= 0) return false;
        if (readers_[static_cast<size_t>(t)] != std::vector<size_t>{reader}) return false;
        const auto at = static_cast<size_t>(maker);
        const Op& op = old_[at];
        if (!op.accumulate.empty() || replaced_.contains(at) || !has(r_.tensors[t].dims, dim)) return false;
        s.cone.insert(at);
        if (ops::rule(op.kind).sharding.linear_in_all_together)
            return std::all_of(op.in.begin(), op.in.end(), [&](TensorId in) { return add_to_cone(in, scatter, at, dim, s); });
        if (!is_by_rows(op, dim, mesh_.size(scatter.group))) return false;
        for (TensorId in : op.in) {
            // Each rank has another block of it, and none would hold their sum.
            if (mesh::meet(r_.tensors[in].placement.partial, scatter.group)) return false;
            const int source = made_by_[static_cast<size_t>(in)];
            if (source >= 0) s.ready = std::max(s.ready, moved_to_[static_cast<size_t>(source)]);
        }
        return true;
    }

    TensorId make(const std::string& name, const ir::Tensor& like) {
        ir::Tensor t = like;
        t.name = b_.fresh(name);
        t.port = -1;
        t.source.clear();
        r_.tensors.push_back(std::move(t));
        return static_cast<TensorId>(r_.tensors.size() - 1);
    }
    // One block of a tensor along `dim`, without the group's axes.
    TensorId make_block(const std::string& name, TensorId of, DimId dim, const mesh::AxisList& group) {
        const TensorId t = make(name, r_.tensors[of]);
        const DimId block = block_of(dim, mesh_.size(group));
        const auto at = static_cast<size_t>(position(r_.tensors[of].dims, dim));
        r_.tensors[t].dims[at] = block;
        mesh::AxisList& axes = r_.tensors[t].placement.dims[at];
        axes = mesh::subtract(axes, group);
        return t;
    }
    DimId block_of(DimId dim, int64_t members) {
        const std::string name = fmt::format("{}.block{}", r_.dims[static_cast<size_t>(dim)].name, members);
        if (const DimId known = r_.dim(name); known >= 0) return known;
        const int64_t size = r_.dims[static_cast<size_t>(dim)].size / members;
        r_.dims.push_back({name, size, size});
        return static_cast<DimId>(r_.dims.size() - 1);
    }

    // The rows of a block of what is whole here. The block is that of the rank `shift` behind this one.
    TensorId rows_of_block(const Op& like, TensorId of, DimId dim, int64_t i, int64_t shift) {
        const TensorId t = make_block(numbered(r_.tensors[of].name, i), of, dim, like.group);
        emit(like, ir::kBlock, {of}, t, {{"dim", position(r_.tensors[of].dims, dim)}, {"shift", shift}});
        return t;
    }
    // The scale of a block, which is that of the rank `shift` behind this one.
    TensorId scale_of_block(const Op& like, TensorId scale, DimId dim, int64_t i, int64_t shift) {
        const size_t at = *groups_of(scale, dim);
        const int64_t members = mesh_.size(like.group), here = groups_here(scale, at);
        const DimId whole = r_.tensors[scale].dims[at], fine = block_of(dim, members);
        const std::string name = fmt::format("{}.block{}", r_.dims[static_cast<size_t>(whole)].name, members);
        DimId block = r_.dim(name);
        if (block < 0) {
            ir::Dim groups = r_.dims[static_cast<size_t>(whole)];
            groups.name = name, groups.of = fine;
            if (here == 1) groups.each /= members;  // a rank has one group, and so has each of its blocks
            else groups.size /= members, groups.valid = groups.size;
            r_.dims.push_back(std::move(groups));
            block = static_cast<DimId>(r_.dims.size() - 1);
        }
        const TensorId t = make(numbered(r_.tensors[scale].name, i), r_.tensors[scale]);
        r_.tensors[t].dims[at] = block;
        emit(like, ir::kBlock, {scale}, t, {{"dim", static_cast<int64_t>(at)}, {"shift", shift}});
        return t;
    }

    Op& emit(const Op& like, std::string_view kind, std::vector<TensorId> in, TensorId out, ir::Attrs attrs) {
        Op op;
        op.kind = kind;
        op.in = std::move(in);
        op.out = {out};
        op.attrs = std::move(attrs);
        if (like.attrs.contains("recomputed")) op.attrs["recomputed"] = int64_t{1};
        op.group = like.group;
        r_.ops.push_back(std::move(op));
        return r_.ops.back();
    }
    // The op on blocks: its operands as `block_of` says, its result a block.
    TensorId on_blocks(const Op& op, const std::map<TensorId, TensorId>& blocks, DimId dim, const mesh::AxisList& group,
                       int64_t i) {
        Op piece = op;
        for (TensorId& t : piece.in) {
            if (const auto at = blocks.find(t); at != blocks.end()) t = at->second;
        }
        piece.out = {make_block(fmt::format("{}.{}", r_.tensors[op.out[0]].name, i), op.out[0], dim, group)};
        r_.ops.push_back(piece);
        return piece.out[0];
    }
    static std::string numbered(const std::string& name, int64_t i) { return fmt::format("{}.{}", name, i); }

    void emit_gather(size_t index, const std::vector<size_t>& products) {
        const Op gather = old_[index];
        const TensorId own = gather.in[0], whole = gather.out[0];
        const DimId dim = dim_of(gather);
        const int64_t members = mesh_.size(gather.group), at = gather.integer("dim");
        const std::string name = r_.tensors[whole].name;
        std::vector<TensorId> rolled = {own}, blocks;
        std::map<size_t, std::vector<TensorId>> results;
        const auto permute = [&](int64_t i) {
            if (i == members) return;
            rolled.push_back(make(numbered(name + ".from", i), r_.tensors[own]));
            emit(gather, "permute", {own}, rolled.back(), {{"by", i}, {"aside", int64_t{1}}}).note =
                i == 1 ? "the blocks of the others, one after the other, beside the products" : "";
        };
        permute(1);
        const auto block_of_rolled = [&](int64_t i) {
            const TensorId block = make_block(numbered(name, i), own, dim, gather.group);
            emit(gather, ir::kBlock, {rolled[static_cast<size_t>(i)]}, block, {{"dim", at}, {"shift", int64_t{0}}});
            return block;
        };
        for (int64_t i = 0; i < members; ++i) {
            const TensorId block = block_of_rolled(i);
            blocks.push_back(block);
            std::map<TensorId, TensorId> now = {{whole, block}};
            const int64_t shift = (members - i) % members;
            for (size_t p : products) {
                for (const TensorId t : old_[p].in) {
                    if (now.contains(t)) continue;
                    if (groups_of(t, dim)) now[t] = scale_of_block(gather, t, dim, i, shift);
                    else if (has(r_.tensors[t].dims, dim)) now[t] = rows_of_block(gather, t, dim, i, shift);
                }
                results[p].push_back(on_blocks(old_[p], now, dim, gather.group, i));
            }
            if (i + 1 < members) permute(i + 2);
        }
        for (size_t p : products) {
            const TensorId out = old_[p].out[0];
            emit(gather, "join_blocks", results[p], out, {{"dim", position(r_.tensors[out].dims, dim)}});
        }
        const std::vector<size_t>& readers = readers_[static_cast<size_t>(whole)];
        const bool read_whole =
            std::any_of(readers.begin(), readers.end(), [&](size_t reader) { return !replaced_.contains(reader); });
        if (!read_whole) return;
        // The last blocks are views in this part. The others are so again: a view that crosses from part to part is a copy.
        for (int64_t i = 0; i + 1 < members; ++i) blocks[static_cast<size_t>(i)] = block_of_rolled(i);
        emit(gather, "join_blocks", blocks, whole, {{"dim", at}});
    }

    // The blocks of the scatters whose operands are there now.
    void emit_scatters(int behind) {
        for (auto& [index, s] : scatters_) {
            if (s.ready != behind) continue;
            const Op scatter = old_[index];
            const DimId dim = dim_of(scatter);
            const int64_t members = mesh_.size(scatter.group);
            TensorId own = -1;
            for (int64_t k = 1; k <= members; ++k) {
                const int64_t i = k % members;  // the own block last
                std::map<TensorId, TensorId> blocks;
                for (size_t c : s.cone) {
                    for (TensorId t : old_[c].in) {
                        const int maker = made_by_[static_cast<size_t>(t)];
                        const bool inside = maker >= 0 && s.cone.contains(static_cast<size_t>(maker));
                        if (inside || blocks.contains(t)) continue;
                        if (groups_of(t, dim)) blocks[t] = scale_of_block(scatter, t, dim, i, i);
                        else if (has(r_.tensors[t].dims, dim)) blocks[t] = rows_of_block(scatter, t, dim, i, i);
                    }
                }
                for (size_t c : s.cone) blocks[old_[c].out[0]] = on_blocks(old_[c], blocks, dim, scatter.group, i);
                const TensorId block = blocks.at(scatter.in[0]);
                if (i == 0) {
                    own = block;
                    continue;
                }
                s.arrived.push_back(make(numbered(r_.tensors[scatter.in[0]].name + ".from", i), r_.tensors[block]));
                emit(scatter, "permute", {block}, s.arrived.back(), {{"by", i}, {"aside", int64_t{1}}}).note =
                    i == 1 ? "each rank's block to it, one after the other, beside the products" : "";
            }
            s.arrived.insert(s.arrived.begin(), own);
        }
    }
    void emit_sum(size_t index, const Scatter& s) {
        const Op& scatter = old_[index];
        emit(scatter, ir::kSumBlocks, s.arrived, scatter.out[0], {{"dim", scatter.integer("dim")}}).note = scatter.note;
    }

    // Moves each all-gather that stays whole ahead, to just behind the second-last communication before it. The last
    // communication before it brings blocks for other products, which then wait only briefly. The gather overlaps with the
    // computation between.
    void move_gathers_ahead() {
        for (size_t i = 0; i < r_.ops.size(); ++i) {
            if (!is_cut_by(r_.ops[i], mesh::Collective::AllGather)) continue;
            const TensorId operand = r_.ops[i].in[0];
            size_t to = i, passed = 0;
            for (size_t at = i; at > 0 && passed < 2; --at) {
                const Op& before = r_.ops[at - 1];
                if (std::find(before.out.begin(), before.out.end(), operand) != before.out.end()) {
                    if (passed == 0) to = at;
                    break;
                }
                if (is_aside(before) && !is_aside(r_.ops[at])) to = at, ++passed;
            }
            if (to == i) continue;
            const auto first = r_.ops.begin() + static_cast<long>(to), last = r_.ops.begin() + static_cast<long>(i);
            std::rotate(first, last, last + 1);
            r_.ops[to].attrs["aside"] = int64_t{1};
        }
    }

    // Each sum of gradients comes just behind the op that makes what it adds, and so into the same part: one op can then do both.
    void move_sums_to_makers() {
        for (size_t i = 0; i < r_.ops.size(); ++i) {
            if (!ops::rule(r_.ops[i].kind).accumulates) continue;
            const TensorId operand = r_.ops[i].in[0];
            const auto makes = [&](const Op& op) { return std::find(op.out.begin(), op.out.end(), operand) != op.out.end(); };
            const auto sum = r_.ops.begin() + static_cast<long>(i), maker = std::find_if(r_.ops.begin(), sum, makes);
            if (maker != sum && !is_aside(*maker)) std::rotate(maker + 1, sum, sum + 1);
        }
    }

    const mesh::Mesh& mesh_;
    Routine& r_;
    ops::Builder b_;
    std::vector<Op> old_;
    std::vector<int> made_by_, moved_to_;       // of tensors: the old op; of old ops: where they are now
    std::vector<std::vector<size_t>> readers_;  // of tensors: old ops
    std::map<size_t, std::vector<size_t>> gathers_;
    std::map<size_t, Scatter> scatters_;
    std::set<size_t> replaced_;
};

void cut(const mesh::Mesh& mesh, Routine& r) {
    const bool of_block = ir::is_forward(r.kind) || ir::is_backward(r.kind);
    const bool generates = r.entry == ir::EntryKind::Prefill || r.entry == ir::EntryKind::Decode;
    if (of_block && !generates && r.chunks == 1) Cutter(mesh, r).run();
}

}  // namespace

ir::Program async_tensor_parallel(ir::Program program) {
    for (Routine& r : program.routines) cut(program.mesh, r);
    return part_routines(std::move(program));  // whose ports are then in the order in which blocks were made
}

}  // namespace lockstep::passes
