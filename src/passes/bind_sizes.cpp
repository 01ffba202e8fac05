#include "passes/bind_sizes.h"

#include <map>
#include <utility>

#include "base/round.h"
#include "ir/kinds.h"

namespace lockstep::passes {
namespace {

using ir::Op;
using ir::Routine;
using ir::Tensor;
using ir::TensorId;

// Of values that a forward saves: how they were called, and how they are now.
using Renamed = std::map<std::pair<std::string, std::string>, std::string>;  // by block and source

bool is_padded(const Routine& r, const Tensor& t) {
    for (const ir::DimId d : t.dims) {
        if (r.dims[static_cast<size_t>(d)].valid < r.dims[static_cast<size_t>(d)].size) return true;
    }
    return false;
}

// The value behind a mask of nothing is the one before it. Of both names it keeps the one that does not speak of the mask.
void drop_masks(Routine& r, Renamed& renamed) {
    std::map<TensorId, TensorId> operands;  // result of a mask -> its operand
    for (Op& op : r.ops) {
        for (TensorId& t : op.in) {
            if (const auto it = operands.find(t); it != operands.end()) t = it->second;
        }
        if (op.kind != ir::kMaskPadding || is_padded(r, r.tensors[static_cast<size_t>(op.out[0])])) continue;
        Tensor &x = r.tensors[static_cast<size_t>(op.in[0])], &y = r.tensors[static_cast<size_t>(op.out[0])];
        operands[op.out[0]] = op.in[0];
        if (y.name.size() < x.name.size()) std::swap(x.name, y.name);
        if (y.port < 0) continue;
        x.port = std::exchange(y.port, -1);
        x.source = renamed[{r.block, y.source}] = x.name;
    }
    std::erase_if(r.ops, [&](const Op& op) { return op.kind == ir::kMaskPadding && operands.contains(op.out[0]); });
}

}  // namespace

ir::Dim bound(ir::Dim dim, const BindSizesOptions& options) {
    if (dim.role == ir::DimRole::Batch) dim.size = dim.valid = options.batch;
    if (dim.role == ir::DimRole::Vocab) dim.size = round_up(dim.valid, options.vocab_multiple);
    return dim;
}

ir::Program bind_sizes(ir::Program program, const BindSizesOptions& options) {
    program.mesh = options.mesh;
    program.microbatches = options.microbatches;
    program.head_tail = options.head_tail;
    for (ir::Parameter& p : program.params) {
        for (ir::Dim& d : p.dims) d = bound(std::move(d), options);
    }
    Renamed renamed;
    for (Routine& r : program.routines) {
        for (ir::Dim& d : r.dims) d = bound(std::move(d), options);
        drop_masks(r, renamed);
    }
    for (Routine& r : program.routines) {  // backwards read what forwards have saved
        for (Tensor& t : r.tensors) {
            if (t.port < 0 || r.ports[static_cast<size_t>(t.port)].kind != ir::PortKind::Frame) continue;
            if (const auto it = renamed.find({r.block, t.source}); it != renamed.end()) t.name = t.source = it->second;
        }
    }
    return program;
}

}  // namespace lockstep::passes
