// Ops that the routines of units share. Tensors are flat segments.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "ops/builder.h"
#include "passes/collective_op.h"

namespace lockstep::passes {

// to[i] = from[i], in the type of `to`.
inline void cast(ir::Routine& r, const std::vector<ir::TensorId>& from, const std::vector<ir::TensorId>& to, const char* note) {
    for (size_t i = 0; i < from.size(); ++i) {
        ir::Op op;
        op.kind = ir::kCast;
        op.in = {from[i]};
        op.out = {to[i]};
        op.note = note;
        r.ops.push_back(std::move(op));
    }
}

// A new tensor of the dims, type and placement of t.
inline ir::TensorId like(ir::Routine& r, ir::TensorId t, const std::string& name) {
    const ir::TensorId made = ops::Builder(r).make({name, r.tensors[t].dims, r.tensors[t].dtype});
    r.tensors[made].placement = r.tensors[t].placement;
    return made;
}

// Along which ranks hold the same elements of a segment as the optimizer splits it.
inline ir::AxisList same_along(const mesh::Mesh& mesh, const ir::Unit& unit, const ir::Segment& segment) {
    return mesh::subtract(mesh.all(), mesh::unite(unit.optimizer, segment.shards));
}

// New tensors of the types of `from`, placed so.
inline std::vector<ir::TensorId> shards_like(ir::Routine& r, const std::vector<ir::TensorId>& from, const char* name,
                                             const ir::AxisList& axes) {
    std::vector<ir::TensorId> out;
    for (size_t i = 0; i < from.size(); ++i) {
        out.push_back(like(r, from[i], fmt::format("{}{}.{}", name, i, axes.size())));
        r.tensors[out.back()].placement.dims = {axes};
    }
    return out;
}

// Sums of gradients over a group, each rank its shard: over one sub-axis after the other, from the innermost on, so that what
// goes to far ranks has been added up by near ones. The last hop ends in `to`; empty: in new tensors, as the others do. The
// result: where it ends.
inline std::vector<ir::TensorId> reduce_scatter(ir::Routine& r, std::vector<ir::TensorId> from,
                                                const std::vector<ir::TensorId>& to, const ir::AxisList& group,
                                                const char* note) {
    for (size_t hop = 0; hop < group.size(); ++hop) {
        const bool last = hop + 1 == group.size();
        const ir::AxisList over = {group[hop]}, after = mesh::join(r.tensors[from[0]].placement.dims[0], over);
        const std::vector<ir::TensorId> sums = last && !to.empty() ? to : shards_like(r, from, "near", after);
        r.ops.push_back(collective("reduce_scatter", from, sums, over, last ? note : "near ranks first"));
        from = sums;
    }
    return from;
}

// Gradients that cross ranks in a narrower type than they are summed in: cast, then reduced over the group. The result: shards
// in that type.
inline std::vector<ir::TensorId> reduce_scatter_narrow(ir::Routine& r, const std::vector<ir::TensorId>& from,
                                                       const ir::AxisList& group, Dtype type, const char* note) {
    const std::vector<ir::TensorId> sent = shards_like(r, from, "sent", r.tensors[from[0]].placement.dims[0]);
    for (const ir::TensorId t : sent) r.tensors[t].dtype = type;
    cast(r, from, sent, "gradients cross ranks in this type");
    return reduce_scatter(r, sent, {}, group, note);
}

}  // namespace lockstep::passes
