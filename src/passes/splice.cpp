#include "passes/splice.h"

#include <algorithm>

#include "base/error.h"
#include "ops/builder.h"

namespace lockstep::passes {

using ir::Access;
using ir::Op;
using ir::PortKind;
using ir::Routine;
using ir::TensorId;

namespace {

int port_in(Routine& r, const ir::Port& like) {
    const int known = r.port(like.name);
    if (known >= 0) return known;
    r.ports.push_back(like);
    return static_cast<int>(r.ports.size()) - 1;
}

std::string unused_name(const Routine& r, const std::string& name) {
    if (r.find(name) < 0) return name;
    for (int i = 2;; ++i) {
        std::string candidate = name + "." + std::to_string(i);
        if (r.find(candidate) < 0) return candidate;
    }
}

}  // namespace

bool in_frame(const Routine& r, const ir::Tensor& t) { return t.port >= 0 && r.ports[t.port].kind == PortKind::Frame; }

int port_of(const Routine& r, PortKind kind) {
    const auto at = std::find_if(r.ports.begin(), r.ports.end(), [&](const ir::Port& p) { return p.kind == kind; });
    return at == r.ports.end() ? -1 : static_cast<int>(at - r.ports.begin());
}

std::string saved_as(const ir::Tensor& tensor) { return tensor.source.empty() ? tensor.name : tensor.source; }

Routine join_forward_and_backward(const Routine& forward, const Routine& backward, Results results, bool mark_recomputed,
                                  const std::set<std::string>& saved) {
    Routine r = backward;
    r.ops.clear();
    const auto add = [&](ir::Tensor copy, int port, std::string source) {
        copy.name = unused_name(r, copy.name);
        copy.port = port;
        copy.source = std::move(source);
        r.tensors.push_back(std::move(copy));
        return static_cast<TensorId>(r.tensors.size() - 1);
    };
    std::vector<TensorId> made(forward.tensors.size()), read(forward.tensors.size());  // where the clones write and read
    std::vector<TensorId> replaced(backward.tensors.size(), -1);  // saved values of backward -> what is read instead
    for (size_t t = 0; t < forward.tensors.size(); ++t) {
        const ir::Tensor& tensor = forward.tensors[t];
        const ir::Port* port = tensor.port < 0 ? nullptr : &forward.ports[tensor.port];
        const bool shared = port && port->kind != PortKind::Frame && (port->access != Access::Write || results == Results::Keep);
        if (shared) {  // one tensor for both: the same parameter, input or activation in the same placement
            const TensorId same = r.find(tensor.name);
            if (same >= 0 && r.tensors[same].port >= 0 && r.ports[r.tensors[same].port].name == port->name) {
                made[t] = read[t] = same;
                continue;
            }
        }
        made[t] = read[t] = add(tensor, shared ? port_in(r, *port) : -1, shared ? tensor.source : "");
        if (saved.contains(tensor.name))
            read[t] = add(tensor, port_in(r, {"frame", PortKind::Frame, Access::Read}), saved_as(tensor));
        if (!in_frame(forward, tensor)) continue;
        for (size_t b = 0; b < backward.tensors.size(); ++b) {
            if (in_frame(backward, backward.tensors[b]) && backward.tensors[b].source == tensor.source) replaced[b] = read[t];
        }
    }
    for (Op op : forward.ops) {
        for (TensorId& t : op.in) t = read[t];
        for (TensorId& t : op.out) t = made[t];
        if (mark_recomputed) op.attrs["recomputed"] = int64_t{1};
        r.ops.push_back(std::move(op));
    }
    for (Op op : backward.ops) {
        for (TensorId& t : op.in) {
            if (replaced[t] >= 0) t = replaced[t];
        }
        r.ops.push_back(std::move(op));
    }
    merge_equal_ops(r);
    r.ops = ops::live_ops(r, r.ops, {});
    ops::renumber(r);
    return r;
}

void merge_equal_ops(Routine& r) {
    std::vector<TensorId> same(r.tensors.size());
    for (size_t t = 0; t < same.size(); ++t) same[t] = static_cast<TensorId>(t);
    const auto comparable = [](const Op& op) {
        ir::Attrs attrs = op.attrs;
        attrs.erase("recomputed");
        return attrs;
    };
    std::vector<Op> kept;
    for (Op& op : r.ops) {
        for (TensorId& t : op.in) t = same[t];
        if (ir::is_collective(op, mesh::Collective::AllGather)) {  // of a slice of what is whole already
            const auto slice =
                std::find_if(kept.begin(), kept.end(), [&](const Op& k) { return k.kind == ir::kSlice && k.out[0] == op.in[0]; });
            if (slice != kept.end() && r.tensors[slice->in[0]].placement == r.tensors[op.out[0]].placement &&
                r.tensors[op.out[0]].port < 0) {
                same[op.out[0]] = slice->in[0];
                continue;
            }
        }
        const bool writes_port = std::any_of(op.out.begin(), op.out.end(), [&](TensorId t) { return r.tensors[t].port >= 0; });
        const auto twin = writes_port ? kept.end() : std::find_if(kept.begin(), kept.end(), [&](const Op& k) {
            return k.kind == op.kind && k.in == op.in && k.group == op.group && k.out.size() == op.out.size() &&
                   comparable(k) == comparable(op);
        });
        const bool equal = twin != kept.end() && [&] {
            for (size_t i = 0; i < op.out.size(); ++i) {
                if (r.tensors[op.out[i]].dims != r.tensors[twin->out[i]].dims ||
                    r.tensors[op.out[i]].dtype != r.tensors[twin->out[i]].dtype ||
                    r.tensors[op.out[i]].placement != r.tensors[twin->out[i]].placement)
                    return false;
            }
            return true;
        }();
        if (!equal) {
            kept.push_back(std::move(op));
            continue;
        }
        for (size_t i = 0; i < op.out.size(); ++i) same[op.out[i]] = twin->out[i];
    }
    r.ops = std::move(kept);
}

}  // namespace lockstep::passes
