#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "ir/program.h"

namespace lockstep::passes {

// A collective or a slice over `group`, along `dim` of its tensors; an all-reduce has none.
inline ir::Op collective(std::string_view kind, std::vector<ir::TensorId> in, std::vector<ir::TensorId> out,
                         const ir::AxisList& group, const char* note, int64_t dim = 0) {
    ir::Op op;
    op.kind = kind;
    op.in = std::move(in);
    op.out = std::move(out);
    op.group = group;
    op.note = note;
    if (kind != "all_reduce") op.attrs["dim"] = dim;
    return op;
}

}  // namespace lockstep::passes
