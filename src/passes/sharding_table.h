// Logical dim -> sub-axes: the whole of data, tensor, sequence and context parallelism as one table.
//   batch -> dp_replicate, dp_shard     kv_heads, then group; ffn; vocab -> tp     seq -> cp, then tp (sequence parallelism)
// seq takes tp only in iteration spaces without kv_heads, group, ffn, vocab. In spaces with kv_seq, which are those of attention,
// heads also take the context ranks on heads, and seq the others; kv_seq is aligned with seq in a ring, and whole otherwise.
// A dim of groups (ir::Dim::of) takes what its fine dim has, as far from the first on as its size allows.
#pragma once

#include <map>
#include <vector>

#include "ir/program.h"

namespace lockstep::passes {

// How context ranks meet the keys and values of others.
struct ContextOptions {
    int64_t on_heads = 1;  // of them this many, the innermost, exchange sequence for heads (DeepSpeed-Ulysses, 2309.14509)
    bool ring = false;     // the others pass keys and values around (ring attention, 2310.01889) instead of gathering them
    bool whole = false;    // all have the whole sequence and repeat each other's work, as in generation
};

class ShardingTable {
public:
    ShardingTable(const mesh::Mesh& mesh, int64_t kv_heads, bool sequence_parallel, const ContextOptions& context = {});

    // The sub-axes of each of `dims` where all of them together are the iteration space of an op; `unsplit` dims get none;
    // `beside` names a dim that the op is placed as if it had.
    std::vector<ir::AxisList> space(const ir::Routine& r, const std::vector<ir::DimId>& dims,
                                    const std::vector<ir::DimId>& unsplit = {}, ir::DimId beside = -1) const;
    // All sub-axes that a dim of this role may take, whatever dims are next to it: its size must be a multiple of their ranks.
    ir::AxisList most(ir::DimRole role) const;
    // Where a value is placed when nothing uses it: its own dims are the space.
    ir::Placement rest(const ir::Routine& r, const std::vector<ir::DimId>& dims) const;

private:
    using Rows = std::map<ir::DimRole, ir::AxisList>;
    ir::AxisList prefix_for(int64_t size, ir::AxisList axes) const;

    mesh::Mesh mesh_;
    Rows fixed_, attention_;  // attention_: of spaces with kv_seq
    ir::AxisList seq_cp_, seq_tp_;
};

}  // namespace lockstep::passes
