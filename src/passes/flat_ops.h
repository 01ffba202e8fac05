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
        op.kind = "cast";
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

// Gradients that cross ranks in a narrower type than they are summed in: cast, then reduced over the group. The result: shards in
// that type.
inline std::vector<ir::TensorId> reduce_scatter_narrow(ir::Routine& r, const std::vector<ir::TensorId>& from,
                                                       const ir::AxisList& group, Dtype type, const char* note) {
    std::vector<ir::TensorId> sent, received;
    const auto make = [&](const char* name, size_t i, const ir::AxisList& axes) {
        const ir::TensorId t = like(r, from[i], fmt::format("{}{}", name, i));
        r.tensors[t].dtype = type, r.tensors[t].placement.dims = {axes};
        return t;
    };
    const ir::AxisList before = r.tensors[from[0]].placement.dims[0], after = mesh::join(before, group);
    for (size_t i = 0; i < from.size(); ++i) sent.push_back(make("sent", i, before));
    for (size_t i = 0; i < from.size(); ++i) received.push_back(make("received", i, after));
    cast(r, from, sent, "gradients cross ranks in this type");
    r.ops.push_back(collective("reduce_scatter", sent, received, group, note));
    return received;
}

}  // namespace lockstep::passes
