#include "passes/sharding_table.h"

#include <algorithm>
#include <numeric>

namespace lockstep::passes {

using ir::AxisList;
using mesh::Axis;

ShardingTable::ShardingTable(const mesh::Mesh& mesh, int64_t kv_heads, bool sequence_parallel) {
    const AxisList tp = mesh.whole(Axis::tp);
    // kv_heads takes the part of tp that divides it (tp is cut there), group the rest.
    AxisList kv, group = tp;
    while (!group.empty() && kv_heads % (mesh.size(kv) * mesh.sub_axes[group[0]].size) == 0) {
        kv.push_back(group[0]);
        group.erase(group.begin());
    }
    fixed_ = {{"batch", mesh::join(mesh.whole(Axis::dp_replicate), mesh.whole(Axis::dp_shard))},
              {"kv_heads", kv},
              {"group", group},
              {"ffn", tp},
              {"vocab", tp}};
    seq_cp_ = mesh.whole(Axis::cp);
    if (sequence_parallel) seq_tp_ = tp;
}

std::vector<AxisList> ShardingTable::space(const ir::Routine& r, const std::vector<ir::DimId>& dims,
                                           const std::vector<std::string>& unsplit, const std::string& beside) const {
    const auto takes_tp = [](const std::string& n) { return n == "kv_heads" || n == "group" || n == "ffn" || n == "vocab"; };
    const bool tp_taken =
        takes_tp(beside) || std::any_of(dims.begin(), dims.end(), [&](ir::DimId d) { return takes_tp(r.dims[d].name); });
    std::vector<AxisList> out;
    for (ir::DimId d : dims) {
        const std::string& name = r.dims[d].name;
        AxisList axes;
        if (std::find(unsplit.begin(), unsplit.end(), name) == unsplit.end()) {
            if (name == "seq") axes = tp_taken ? seq_cp_ : mesh::join(seq_cp_, seq_tp_);
            if (auto it = fixed_.find(name); it != fixed_.end()) axes = it->second;
        }
        out.push_back(axes);
    }
    return out;
}

ir::Placement ShardingTable::rest(const ir::Routine& r, const std::vector<ir::DimId>& dims) const {
    return {space(r, dims), {}, ir::Reduce::Sum};
}

}  // namespace lockstep::passes
