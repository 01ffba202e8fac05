#include "passes/mark_one_document.h"

#include "ops/rule.h"

namespace lockstep::passes {

ir::Program mark_one_document(ir::Program program) {
    for (ir::Routine& r : program.routines) {
        if (r.entry != ir::EntryKind::Train && r.entry != ir::EntryKind::Eval) continue;
        for (ir::Op& op : r.ops) {
            const int at = ops::rule(op.kind).queries;
            if (at < 0) continue;
            const auto query = static_cast<size_t>(at);
            const ir::Tensor &q = r.tensors[op.in[query]], &k = r.tensors[op.in[query + 1]];
            const int64_t queries = ir::local_size(program.mesh, r, q, 1);
            if (queries == r.dims[q.dims[1]].size && queries == r.dims[k.dims[1]].size) op.attrs["one_document"] = int64_t{1};
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
