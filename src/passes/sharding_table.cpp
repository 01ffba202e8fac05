#include "passes/sharding_table.h"

#include <algorithm>
#include <numeric>

namespace lockstep::passes {

using ir::AxisList;
using ir::DimRole;
using mesh::Axis;

namespace {

// What the key heads can take of `axes`, from the first on; the rest is for groups.
void deal(const mesh::Mesh& mesh, int64_t kv_heads, const AxisList& axes, AxisList& of_kv_heads, AxisList& of_group) {
    for (const int a : axes) {
        const bool fits = of_group.empty() && kv_heads % (mesh.size(of_kv_heads) * mesh.sub_axes[a].size) == 0;
        (fits ? of_kv_heads : of_group).push_back(a);
    }
}

}  // namespace

ShardingTable::ShardingTable(const mesh::Mesh& mesh, int64_t kv_heads, bool sequence_parallel, const ContextOptions& context)
    : mesh_(mesh) {
    const AxisList tp = mesh.whole(Axis::tp);
    AxisList kv, group;  // tp is cut where they part
    deal(mesh, kv_heads, tp, kv, group);
    fixed_ = {{DimRole::Batch, mesh::join(mesh.whole(Axis::dp_replicate), mesh.whole(Axis::dp_shard))},
              {DimRole::KvHeads, kv},
              {DimRole::Group, group},
              {DimRole::Ffn, tp},
              {DimRole::Vocab, tp}};
    attention_ = fixed_;
    if (sequence_parallel) seq_tp_ = tp;
    if (context.whole) return;
    seq_cp_ = mesh.whole(Axis::cp);
    AxisList on_seq = seq_cp_, on_heads;
    while (mesh.size(on_heads) < context.on_heads) {
        on_heads.insert(on_heads.begin(), on_seq.back());
        on_seq.pop_back();
    }
    deal(mesh, kv_heads, on_heads, attention_[DimRole::KvHeads], attention_[DimRole::Group]);
    attention_[DimRole::Seq] = on_seq;
    if (context.ring) attention_[DimRole::KvSeq] = on_seq;
}

// The longest list that `axes` begins with whose ranks divide the size.
AxisList ShardingTable::prefix_for(int64_t size, AxisList axes) const {
    while (size % mesh_.size(axes) != 0) axes.pop_back();
    return axes;
}

std::vector<AxisList> ShardingTable::space(const ir::Routine& r, const std::vector<ir::DimId>& dims,
                                           const std::vector<ir::DimId>& unsplit, ir::DimId beside) const {
    const auto takes_tp = [&](ir::DimId d) {
        return d >= 0 && r.dims[d].role != DimRole::Batch && fixed_.contains(r.dims[d].role);
    };
    const bool tp_taken = takes_tp(beside) || std::any_of(dims.begin(), dims.end(), takes_tp);
    const auto is_key = [&](ir::DimId d) { return r.dims[d].role == DimRole::KvSeq; };
    const bool attends = std::any_of(dims.begin(), dims.end(), is_key);
    const Rows& rows = attends ? attention_ : fixed_;
    const auto axes_of = [&](ir::DimId d) -> AxisList {
        const DimRole role = r.dims[d].role;
        if (std::find(unsplit.begin(), unsplit.end(), d) != unsplit.end()) return {};
        if (auto it = rows.find(role); it != rows.end()) return it->second;
        if (role != DimRole::Seq) return {};
        return tp_taken ? seq_cp_ : mesh::join(seq_cp_, seq_tp_);
    };
    std::vector<AxisList> out;
    for (ir::DimId d : dims) {
        const bool is_of_groups = r.dims[d].of >= 0 && !is_key(d);
        out.push_back(is_of_groups ? prefix_for(r.dims[d].size, axes_of(r.dims[d].of)) : axes_of(d));
    }
    return out;
}

AxisList ShardingTable::most(DimRole role) const {
    if (role == DimRole::Seq) return mesh::join(seq_cp_, seq_tp_);
    const auto it = attention_.find(role);
    return it == attention_.end() ? AxisList{} : it->second;
}

ir::Placement ShardingTable::rest(const ir::Routine& r, const std::vector<ir::DimId>& dims) const {
    return {space(r, dims), {}, ir::Reduce::Sum};
}

}  // namespace lockstep::passes
