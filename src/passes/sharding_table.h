// Logical dim -> sub-axes: the whole of data, tensor and sequence parallelism as one table.
//   batch -> dp_replicate, dp_shard     kv_heads, then group; ffn; vocab -> tp     seq -> cp, then tp (sequence parallelism)
// seq takes tp only in iteration spaces without kv_heads, group, ffn, vocab.
#pragma once

#include <map>
#include <vector>

#include "ir/program.h"

namespace lockstep::passes {

class ShardingTable {
public:
    ShardingTable(const mesh::Mesh& mesh, int64_t kv_heads, bool sequence_parallel);

    // The sub-axes of each of `dims` where all of them together are the iteration space of an op; `unsplit` dims get none;
    // `beside` names a dim that the op is placed as if it had.
    std::vector<ir::AxisList> space(const ir::Routine& r, const std::vector<ir::DimId>& dims,
                                    const std::vector<ir::DimId>& unsplit = {}, ir::DimId beside = -1) const;
    // All sub-axes that a dim of this role may take, whatever dims are next to it: its size must be a multiple of their ranks.
    ir::AxisList most(ir::DimRole role) const;
    // Where a value is placed when nothing uses it: its own dims are the space.
    ir::Placement rest(const ir::Routine& r, const std::vector<ir::DimId>& dims) const;

private:
    std::map<ir::DimRole, ir::AxisList> fixed_;
    ir::AxisList seq_cp_, seq_tp_;
};

}  // namespace lockstep::passes
