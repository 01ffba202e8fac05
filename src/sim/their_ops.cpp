#include "sim/their_ops.h"

#include <algorithm>
#include <string>

#include "ops/rule.h"

namespace lockstep::sim {
namespace {

// A value that crosses ranks before it is cast has two bytes an element, rather than one.
constexpr double kWide = 2;

// Where the dim of that role is; -1: the tensor has none.
int place_of(const ir::Routine& r, const ir::Tensor& t, ir::DimRole role) {
    const auto is_it = [&](ir::DimId d) { return r.dims[static_cast<size_t>(d)].role == role; };
    const auto at = std::find_if(t.dims.begin(), t.dims.end(), is_it);
    return at == t.dims.end() ? -1 : static_cast<int>(at - t.dims.begin());
}

bool is_of_keys(const ir::Routine& r, const ir::Tensor& t) {
    return place_of(r, t, ir::DimRole::KvHeads) >= 0 && place_of(r, t, ir::DimRole::Group) < 0 &&
           place_of(r, t, ir::DimRole::Qkv) < 0;
}

double queries_of_a_key(const ir::Routine& r) {
    const auto is_group = [](const ir::Dim& d) { return d.role == ir::DimRole::Group; };
    const auto at = std::find_if(r.dims.begin(), r.dims.end(), is_group);
    return at == r.dims.end() ? 1 : static_cast<double>(at->size);
}

// Has a rank codes whose scales are of single rows or columns?
bool casts_by_rows(const ir::Program& p) {
    const auto casts_rows = [](const ir::Routine& r, const ir::Op& op) {
        if (op.kind != ir::kToFloat8) return false;
        const std::vector<ir::DimId>& dims = r.tensors[static_cast<size_t>(op.out[1])].dims;
        const auto is_coarse = [&](ir::DimId d) { return r.dims[static_cast<size_t>(d)].of >= 0; };
        return !dims.empty() && std::none_of(dims.begin(), dims.end(), is_coarse);
    };
    return std::any_of(p.routines.begin(), p.routines.end(), [&](const ir::Routine& r) {
        return std::any_of(r.ops.begin(), r.ops.end(), [&](const ir::Op& op) { return casts_rows(r, op); });
    });
}

bool is_of_layer(const ir::Routine& r) { return ir::is_forward(r.kind) || ir::is_backward(r.kind); }

}  // namespace

TheirOps::TheirOps(const ir::Program& program, const Stack& stack)
    : mesh_(program.mesh),
      tp_(program.mesh.whole(mesh::Axis::tp)),
      cp_(program.mesh.whole(mesh::Axis::cp)),
      copies_blocks_(stack.copies_blocks),
      repeats_keys_(stack.repeats_keys),
      casts_gathered_(stack.casts_gathered && casts_by_rows(program)) {}

double TheirOps::sent(const ir::Routine& r, const ir::Op& op, ir::TensorId tensor) const {
    const ir::Tensor& t = r.tensors[static_cast<size_t>(tensor)];
    if (repeats_keys_ && is_of_layer(r) && mesh::meet(op.group, cp_) && is_of_keys(r, t)) return queries_of_a_key(r);
    // Backward casts once more, by columns: codes of both are as many bytes as what they are of.
    if (casts_gathered_ && ir::is_forward(r.kind) && mesh::meet(op.group, tp_) && is_float8(t.dtype)) return kWide;
    return 1;
}

ops::CostKey TheirOps::copied(const ir::Routine& r, const ir::Op& op) const {
    ops::CostKey key;
    const bool gathers = ir::is_collective(op, mesh::Collective::AllGather),
               scatters = ir::is_collective(op, mesh::Collective::ReduceScatter);
    if (!copies_blocks_ || !is_of_layer(r) || !(gathers || scatters) || op.in.size() != 1 || !op.attrs.contains("dim") ||
        op.integer("dim") == 0)
        return key;
    const ir::TensorId whole = gathers ? op.out[0] : op.in[0];
    const ir::Tensor& t = r.tensors[static_cast<size_t>(whole)];
    if (is_of_keys(r, t)) return key;
    const auto bytes = static_cast<double>(ir::local_bytes(mesh_, r, t)) * sent(r, op, whole);
    key.op = "copy", key.kernel = "device.copy", key.dtype = std::string(name_of(t.dtype));
    key.sizes = {1, bytes}, key.bytes = 2 * bytes;
    return key;
}

double TheirOps::elements(const ir::Routine& r, const ir::Op& op) const {
    if (!casts_gathered_ || (op.kind != ir::kAmax && op.kind != ir::kToFloat8)) return 1;
    const ir::Tensor& t = r.tensors[static_cast<size_t>(op.in[0])];
    const int seq = place_of(r, t, ir::DimRole::Seq);
    if (seq < 0) return 1;
    return static_cast<double>(mesh_.size(mesh::intersect(t.placement.dims[static_cast<size_t>(seq)], tp_)));
}

}  // namespace lockstep::sim
