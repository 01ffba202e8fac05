#include "ops/builder.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace lockstep::ops {

std::vector<DimId> Builder::dims(std::initializer_list<std::string_view> names) const {
    std::vector<DimId> out;
    for (std::string_view n : names) {
        out.push_back(r_.dim(n));
        if (out.back() < 0) throw InternalError(fmt::format("routine {} has no dim {}", r_.name, n));
    }
    return out;
}

std::vector<DimId> Builder::dims(std::initializer_list<ir::DimRole> roles) const {
    std::vector<DimId> out;
    for (ir::DimRole role : roles) {
        out.push_back(r_.dim(role));
        if (out.back() < 0) throw InternalError(fmt::format("routine {} has no dim that is its {}", r_.name, name_of(role)));
    }
    return out;
}

std::vector<DimId> Builder::without(std::vector<DimId> dims, DimId one) {
    dims.erase(std::remove(dims.begin(), dims.end(), one), dims.end());
    return dims;
}

std::string Builder::fresh(const std::string& name) const {
    if (r_.find(name) < 0) return name;
    for (int i = 2;; ++i) {
        std::string candidate = fmt::format("{}.{}", name, i);
        if (r_.find(candidate) < 0) return candidate;
    }
}

TensorId Builder::make(const Result& result) {
    ir::Tensor t;
    t.name = fresh(result.name);
    t.dtype = result.dtype;
    t.dims = result.dims;
    r_.tensors.push_back(std::move(t));
    return static_cast<TensorId>(r_.tensors.size() - 1);
}

TensorId Builder::port(std::string name, ir::PortKind kind, ir::Access access, std::vector<DimId> dims, Dtype dtype) {
    return port_tensor(name, kind, access, name, std::move(dims), "", dtype);
}

TensorId Builder::port(const ir::Program& program, ir::StateId id, ir::Access access, std::vector<DimId> dims) {
    const ir::State& state = program.states.at(static_cast<size_t>(id));
    const TensorId t = make({state.name, std::move(dims), state.dtype});
    leave(t, program.port(id, access));
    return t;
}

TensorId Builder::port(ir::PortRole role, ir::PortKind kind, ir::Access access, std::vector<DimId> dims, Dtype dtype) {
    const TensorId t = port(std::string(name_of(role)), kind, access, std::move(dims), dtype);
    r_.ports[r_.tensors[t].port].role = role;
    if (kind == ir::PortKind::Input) r_.tensors[t].source = r_.tensors[t].name;
    return t;
}

void Builder::leave(TensorId x, ir::Port port) {
    r_.tensors[x].port = static_cast<int>(r_.ports.size());
    r_.ports.push_back(std::move(port));
}

TensorId Builder::port_tensor(std::string port_name, ir::PortKind kind, ir::Access access, std::string name,
                              std::vector<DimId> dims, std::string source, Dtype dtype) {
    int port = r_.port(port_name);
    if (port < 0) {
        port = static_cast<int>(r_.ports.size());
        r_.ports.push_back({port_name, kind, access});
    }
    const TensorId t = make({name, std::move(dims), dtype});
    r_.tensors[t].port = port;
    r_.tensors[t].source = source;
    return t;
}

std::vector<TensorId> Builder::op(std::string_view kind, std::vector<TensorId> in, std::vector<Result> out, ir::Attrs attrs,
                                  std::string note) {
    Op op;
    op.kind = std::string(kind);
    op.in = std::move(in);
    op.attrs = std::move(attrs);
    op.note = std::move(note);
    for (const Result& r : out) op.out.push_back(make(r));
    const std::string wrong = check_op(r_, op);
    if (!wrong.empty()) throw InternalError(fmt::format("routine {}, op {}: {}", r_.name, kind, wrong));
    r_.ops.push_back(op);
    return r_.ops.back().out;
}

TensorId Builder::einsum(const std::string& name, std::vector<DimId> dims, std::vector<TensorId> in) {
    return op("einsum", std::move(in), {{name, std::move(dims)}})[0];
}

TensorId Builder::add(const std::string& name, std::vector<TensorId> in) {
    const std::vector<DimId> d = dims(in[0]);
    return op("add", std::move(in), {{name, d}})[0];
}

TensorId Builder::scale(const std::string& name, TensorId x, double c) {
    return op("scale", {x}, {{name, dims(x)}}, {{"c", c}})[0];
}

TensorId Builder::unary(const std::string& name, std::string_view fn, TensorId x, ir::Attrs attrs) {
    attrs["fn"] = std::string(fn);
    return op("unary", {x}, {{name, dims(x)}}, std::move(attrs))[0];
}

void Builder::accumulate(TensorId into, TensorId x) {
    Op op;
    op.kind = "accumulate";
    op.in = {x};
    op.out = {into};
    op.accumulate = {0};
    r_.ops.push_back(std::move(op));
}

Derivative::Derivative(Builder& builder, std::vector<bool> wants)
    : b_(builder), wants_(std::move(wants)), parts_(wants_.size()) {}

void Derivative::seed(TensorId t, TensorId cotangent) { parts_[t].push_back(cotangent); }

TensorId Derivative::total(TensorId t) {
    std::vector<TensorId>& parts = parts_[t];
    if (parts.empty()) return -1;
    if (parts.size() > 1) parts = {b_.add("d." + b_.tensor(t).name, parts)};
    return parts[0];
}

void Derivative::run(const std::vector<Op>& ops) {
    for (auto op = ops.rbegin(); op != ops.rend(); ++op) {
        const bool flows = std::any_of(op->out.begin(), op->out.end(), [&](TensorId o) { return !parts_[o].empty(); });
        if (!flows || !rule(op->kind).derivative) continue;
        std::vector<TensorId> d_out;
        for (TensorId o : op->out) d_out.push_back(total(o));
        const size_t first = b_.routine().ops.size();
        const std::vector<TensorId> d_in = rule(op->kind).derivative(b_, *op, d_out);
        if (const auto beside = op->attrs.find("beside"); beside != op->attrs.end()) {  // a derivative is placed like its op
            for (size_t i = first; i < b_.routine().ops.size(); ++i) b_.routine().ops[i].attrs.insert(*beside);
        }
        for (size_t i = 0; i < d_in.size(); ++i) {
            if (d_in[i] >= 0 && wants_[op->in[i]]) parts_[op->in[i]].push_back(d_in[i]);
        }
    }
}

std::vector<bool> depends_on(const ir::Routine& routine, const std::vector<Op>& ops, const std::vector<TensorId>& sources) {
    std::vector<bool> depends(routine.tensors.size(), false);
    for (TensorId t : sources) depends[t] = true;
    for (const Op& op : ops) {
        if (std::any_of(op.in.begin(), op.in.end(), [&](TensorId t) { return depends[t]; })) {
            for (TensorId t : op.out) depends[t] = true;
        }
    }
    return depends;
}

std::vector<Op> live_ops(const ir::Routine& routine, const std::vector<Op>& ops, const std::vector<TensorId>& roots) {
    std::vector<bool> live(routine.tensors.size(), false);
    for (TensorId t : roots) live[t] = true;
    std::vector<Op> out;
    for (auto op = ops.rbegin(); op != ops.rend(); ++op) {
        const bool needed =
            std::any_of(op->out.begin(), op->out.end(), [&](TensorId t) { return live[t] || routine.tensors[t].port >= 0; });
        if (!needed) continue;
        for (TensorId t : op->in) live[t] = true;
        out.push_back(*op);
    }
    std::reverse(out.begin(), out.end());
    return out;
}

namespace {

// A read port that nothing reads is dropped; what is written is kept even where no op writes it (verify objects).
bool is_dropped_if_unused(const ir::Port& port) { return port.access == ir::Access::Read && port.kind != ir::PortKind::State; }

// Would renumber() change nothing? Ports without tensors, tensors out of order and tensors without use say no.
bool is_numbered(const ir::Routine& routine, const std::vector<bool>& used) {
    size_t t = 0;
    for (size_t p = 0; p < routine.ports.size(); ++p) {
        const size_t first = t;
        for (; t < routine.tensors.size() && routine.tensors[t].port == static_cast<int>(p); ++t) {
            if (!used[t] && is_dropped_if_unused(routine.ports[p])) return false;
        }
        if (t == first) return false;
    }
    const auto is_of_port = [&](TensorId id) { return routine.tensors[static_cast<size_t>(id)].port >= 0; };
    for (const Op& op : routine.ops) {
        for (TensorId in : op.in) {
            if (static_cast<size_t>(in) >= t) return false;
        }
        for (TensorId out : op.out) {
            if (static_cast<size_t>(out) == t && !is_of_port(out)) ++t;
            else if (static_cast<size_t>(out) >= t) return false;
        }
    }
    return t == routine.tensors.size();
}

}  // namespace

void renumber(ir::Routine& routine) {
    std::vector<bool> used(routine.tensors.size(), false);
    for (const Op& op : routine.ops) {
        for (TensorId t : op.in) used[t] = true;
        for (TensorId t : op.out) used[t] = true;
    }
    if (is_numbered(routine, used)) return;
    std::vector<TensorId> to(routine.tensors.size(), -1);
    std::vector<ir::Tensor> tensors;
    std::vector<ir::Port> ports;
    tensors.reserve(routine.tensors.size());
    const auto keep = [&](TensorId t) {
        to[t] = static_cast<TensorId>(tensors.size());
        tensors.push_back(std::move(routine.tensors[t]));
    };
    for (size_t p = 0; p < routine.ports.size(); ++p) {
        const std::vector<TensorId> members = routine.port_tensors(static_cast<int>(p));
        const bool may_go = is_dropped_if_unused(routine.ports[p]);
        size_t kept = 0;
        for (TensorId t : members) {
            if (may_go && !used[t]) continue;
            keep(t);
            tensors.back().port = static_cast<int>(ports.size());
            ++kept;
        }
        if (kept > 0) ports.push_back(std::move(routine.ports[p]));
    }
    for (const Op& op : routine.ops) {
        for (TensorId t : op.out) {
            if (to[t] < 0) keep(t);
        }
    }
    for (Op& op : routine.ops) {
        for (TensorId& t : op.in) {
            if (to[t] < 0) {
                throw InternalError(fmt::format("routine {}, op {}: operand {} is defined nowhere", routine.name, op.kind,
                                                routine.tensors[t].name));
            }
            t = to[t];
        }
        for (TensorId& t : op.out) t = to[t];
    }
    routine.tensors = std::move(tensors);
    routine.ports = std::move(ports);
}

}  // namespace lockstep::ops
