#include "passes/sharding_table.h"

#include <algorithm>
#include <numeric>

namespace lockstep::passes {

using ir::AxisList;
using ir::DimRole;
using mesh::Axis;

ShardingTable::ShardingTable(const mesh::Mesh& mesh, int64_t kv_heads, bool sequence_parallel) {
    const AxisList tp = mesh.whole(Axis::tp);
    // kv_heads takes the part of tp that divides it (tp is cut there), group the rest.
    AxisList kv, group = tp;
    while (!group.empty() && kv_heads % (mesh.size(kv) * mesh.sub_axes[group[0]].size) == 0) {
        kv.push_back(group[0]);
        group.erase(group.begin());
    }
    fixed_ = {{DimRole::Batch, mesh::join(mesh.whole(Axis::dp_replicate), mesh.whole(Axis::dp_shard))},
              {DimRole::KvHeads, kv},
              {DimRole::Group, group},
              {DimRole::Ffn, tp},
              {DimRole::Vocab, tp}};
    seq_cp_ = mesh.whole(Axis::cp);
    if (sequence_parallel) seq_tp_ = tp;
}

std::vector<AxisList> ShardingTable::space(const ir::Routine& r, const std::vector<ir::DimId>& dims,
                                           const std::vector<ir::DimId>& unsplit, ir::DimId beside) const {
    const auto takes_tp = [&](ir::DimId d) {
        return d >= 0 && r.dims[d].role != DimRole::Batch && fixed_.contains(r.dims[d].role);
    };
    const bool tp_taken = takes_tp(beside) || std::any_of(dims.begin(), dims.end(), takes_tp);
    std::vector<AxisList> out;
    for (ir::DimId d : dims) {
        const DimRole role = r.dims[d].role;
        AxisList axes;
        if (std::find(unsplit.begin(), unsplit.end(), d) == unsplit.end()) {
            if (role == DimRole::Seq) axes = tp_taken ? seq_cp_ : mesh::join(seq_cp_, seq_tp_);
            if (auto it = fixed_.find(role); it != fixed_.end()) axes = it->second;
        }
        out.push_back(axes);
    }
    return out;
}

AxisList ShardingTable::most(DimRole role) const {
    if (role == DimRole::Seq) return mesh::join(seq_cp_, seq_tp_);
    const auto it = fixed_.find(role);
    return it == fixed_.end() ? AxisList{} : it->second;
}

ir::Placement ShardingTable::rest(const ir::Routine& r, const std::vector<ir::DimId>& dims) const {
    return {space(r, dims), {}, ir::Reduce::Sum};
}

}  // namespace lockstep::passes
