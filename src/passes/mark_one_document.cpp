#include "passes/mark_one_document.h"

#include <optional>

#include "ops/rule.h"

namespace lockstep::passes {
namespace {

// Over which ranks the queries of a sequence are divided, if its keys are whole, or divided as they are. Empty: over none.
// Nothing: the keys are others.
std::optional<mesh::AxisList> ranks_of_sequence(const ir::Routine& r, const ir::Op& op, size_t query) {
    const ir::Tensor &q = r.tensors[op.in[query]], &k = r.tensors[op.in[query + 1]];
    if (r.dims[q.dims[1]].size != r.dims[k.dims[1]].size || k.placement.dims[1] != op.group) return std::nullopt;
    const mesh::AxisList& ranks = q.placement.dims[1];
    return op.group.empty() || op.group == ranks ? std::optional(ranks) : std::nullopt;
}

}  // namespace

ir::Program mark_one_document(ir::Program program) {
    for (ir::Routine& r : program.routines) {
        if (r.entry != ir::EntryKind::Train && r.entry != ir::EntryKind::Eval) continue;
        for (ir::Op& op : r.ops) {
            const int query = ops::rule(op.kind).queries;
            if (query < 0) continue;
            const std::optional<mesh::AxisList> ranks = ranks_of_sequence(r, op, static_cast<size_t>(query));
            if (!ranks) continue;
            if (!ranks->empty() && program.head_tail > 1) {
                if (program.mesh.size(*ranks) != program.head_tail) continue;
                op.attrs["head_tail"] = program.head_tail;
            }
            op.attrs["one_document"] = int64_t{1};
        }
    }
    return program;
}

ir::Program allow_any_order(ir::Program program) {
    for (ir::Routine& r : program.routines) {
        for (ir::Op& op : r.ops) {
            if (op.kind == ir::kAttentionBackward || op.kind == ir::kAttentionBlockBackward) op.attrs["any_order"] = int64_t{1};
        }
    }
    return program;
}

}  // namespace lockstep::passes
