#pragma once

#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "ir/program.h"

namespace lockstep::passes {

// An all-gather, a reduce-scatter, an all-reduce or a slice over `group`, along `dim` of its tensors; an all-reduce has none.
inline ir::Op collective(std::string_view kind, std::vector<ir::TensorId> in, std::vector<ir::TensorId> out,
                         const ir::AxisList& group, const char* note, int64_t dim = 0) {
    ir::Op op;
    op.kind = kind;
    op.in = std::move(in);
    op.out = std::move(out);
    op.group = group;
    op.note = note;
    const std::optional<mesh::Collective> known = mesh::collective_named(kind);
    const bool changes_a_dim = !known || mesh::traits_of(*known).gives != mesh::traits_of(*known).takes;
    if (changes_a_dim) op.attrs["dim"] = dim;
    return op;
}

}  // namespace lockstep::passes
