#pragma once

#include <string>
#include <utility>
#include <vector>

#include "ops/builder.h"

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

}  // namespace lockstep::passes
