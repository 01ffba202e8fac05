#include "passes/differentiate.h"

#include <algorithm>

#include "base/error.h"
#include "ops/builder.h"

namespace lockstep::passes {
namespace {

using ir::Access;
using ir::Op;
using ir::PortKind;
using ir::PortRole;
using ir::Routine;
using ir::StateRole;
using ir::TensorId;
using ops::Builder;

bool is_kind(const Routine& r, TensorId t, PortKind kind) {
    const int port = r.tensors[t].port;
    return port >= 0 && r.ports[port].kind == kind;
}

// The ops whose results backward makes again instead of reading them.
std::vector<Op> rerun_ops(const Routine& forward) {
    std::vector<bool> from_inputs(forward.tensors.size(), false);
    for (size_t t = 0; t < forward.tensors.size(); ++t)
        from_inputs[t] = is_kind(forward, static_cast<TensorId>(t), PortKind::Input);
    std::vector<Op> out;
    for (const Op& op : forward.ops) {
        const bool all = std::all_of(op.in.begin(), op.in.end(), [&](TensorId t) { return from_inputs[t]; });
        if (all) {
            for (TensorId t : op.out) from_inputs[t] = true;
        }
        if (all || ops::rule(op.kind).memory.always_recomputed) out.push_back(op);
    }
    return out;
}

// The value that is accumulated into the loss, or -1.
TensorId loss_of(const Routine& r, ir::StateId loss_sum) {
    const int port = r.port_of_state(loss_sum);
    for (const Op& op : r.ops) {
        if (port >= 0 && ops::rule(op.kind).accumulates && r.tensors[op.out[0]].port == port) return op.in[0];
    }
    return -1;
}

// The one tensor of a port, or -1.
TensorId tensor_of(const Routine& r, int port) { return port < 0 ? -1 : r.port_tensors(port).at(0); }

Routine make_backward(const ir::Program& program, Routine& forward) {
    Routine r = forward;  // shares tensor ids with the forward until it is renumbered
    r.name = forward.block + ".backward";
    r.kind = ir::RoutineKind::Backward;
    r.ops.clear();
    Builder b(r);

    std::vector<TensorId> sources;
    TensorId x = -1;
    for (size_t t = 0; t < forward.tensors.size(); ++t) {
        const TensorId id = static_cast<TensorId>(t);
        if (is_kind(forward, id, PortKind::Params)) sources.push_back(id);
    }
    if (const TensorId in = tensor_of(forward, forward.port(PortRole::X)); in >= 0) sources.push_back(x = in);
    const size_t n_forward = forward.tensors.size();
    std::vector<bool> wants = ops::depends_on(forward, forward.ops, sources);
    ops::Derivative derivative(b, wants);
    const TensorId y = tensor_of(forward, forward.port(PortRole::Y)), loss = loss_of(forward, program.state(StateRole::LossSum));
    if (y >= 0) derivative.seed(y, b.port(PortRole::DY, PortKind::Value, Access::Read, b.dims(y)));
    if (loss >= 0) {
        const ir::StateId scaled = program.state(StateRole::LossSeed);
        derivative.seed(loss, b.port(program, scaled >= 0 ? scaled : program.state(StateRole::InverseCount), Access::Read));
    }
    derivative.run(forward.ops);
    for (TensorId s : sources) {
        if (s == x) continue;
        const TensorId grad = b.port_tensor("gradients", PortKind::Gradients, Access::Accumulate, "grad." + b.tensor(s).name,
                                            b.dims(s), b.tensor(s).source);
        const TensorId total = derivative.total(s);
        ensure(total >= 0, "differentiate: no gradient flows to " + b.tensor(s).name);
        b.accumulate(grad, total);
    }
    std::vector<TensorId> roots;
    if (x >= 0) {
        const TensorId dx = derivative.total(x);
        r.tensors[dx].name = "d.x";
        b.leave(dx, {"d.x", PortKind::Value, Access::Write, PortRole::DX});
        roots.push_back(dx);
    }
    std::vector<Op> all = rerun_ops(forward);
    all.insert(all.end(), r.ops.begin(), r.ops.end());
    // Forward's own port tensors are not written here: what a clone of the forward would write is not live by itself.
    for (size_t t = 0; t < n_forward; ++t) {
        const int port = r.tensors[t].port;
        if (port >= 0 && r.ports[port].access != Access::Read) r.tensors[t].port = -1;
    }
    r.ops = ops::live_ops(r, all, roots);

    // What is read but neither made here nor bound is saved by the forward.
    std::vector<bool> made(r.tensors.size(), false), saved(r.tensors.size(), false);
    for (const Op& op : r.ops) {
        for (TensorId t : op.in) saved[t] = saved[t] || (!made[t] && r.tensors[t].port < 0);
        for (TensorId t : op.out) made[t] = true;
    }
    const auto frame = [](Routine& routine, Access access) {
        routine.ports.push_back({"frame", PortKind::Frame, access});
        return static_cast<int>(routine.ports.size()) - 1;
    };
    const bool any = std::find(saved.begin(), saved.end(), true) != saved.end();
    const int read = any ? frame(r, Access::Read) : -1, written = any ? frame(forward, Access::Write) : -1;
    for (size_t t = 0; t < n_forward; ++t) {
        if (!saved[t]) continue;
        ensure(forward.tensors[t].port < 0,
               "differentiate: backward reads " + forward.tensors[t].name + ", which leaves the forward");
        r.tensors[t].port = read;
        forward.tensors[t].port = written;
        r.tensors[t].source = forward.tensors[t].source = forward.tensors[t].name;
    }
    std::erase_if(r.ops, [](const Op& op) { return op.out.empty(); });
    return r;
}

}  // namespace

ir::Program differentiate(ir::Program program) {
    std::vector<Routine> backward;
    for (Routine& r : program.routines) {
        if (r.kind == ir::RoutineKind::Forward && r.entry == ir::EntryKind::Train) backward.push_back(make_backward(program, r));
    }
    for (Routine& r : backward) program.routines.push_back(std::move(r));
    return program;
}

}  // namespace lockstep::passes
