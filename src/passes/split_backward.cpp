#include "passes/split_backward.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>

#include "base/error.h"
#include "ops/builder.h"
#include "passes/splice.h"

namespace lockstep::passes {
namespace {

using ir::Access;
using ir::Op;
using ir::PortKind;
using ir::Routine;
using ir::RoutineKind;
using ir::TensorId;

// Which of a backward's ops the gradient of its input needs, and those that only add up what these make.
std::vector<bool> input_part(const Routine& backward) {
    std::vector<bool> live(backward.tensors.size(), false), part(backward.ops.size(), false);
    if (const int dx = backward.port(ir::PortRole::DX); dx >= 0) live[backward.port_tensors(dx)[0]] = true;
    for (size_t i = backward.ops.size(); i-- > 0;) {
        const Op& op = backward.ops[i];
        part[i] = std::any_of(op.out.begin(), op.out.end(), [&](TensorId t) { return live[t]; });
        if (!part[i]) continue;
        for (TensorId t : op.in) live[t] = true;
    }
    std::vector<bool> made(backward.tensors.size(), false);
    for (size_t i = 0; i < backward.ops.size(); ++i) {
        const Op& op = backward.ops[i];
        if (ops::rule(op.kind).accumulates && made[op.in[0]]) part[i] = true;
        for (TensorId t : op.out) made[t] = made[t] || part[i];
    }
    return part;
}

// Cheap, or a collective that takes the room of its result to save: made again.
bool is_made_again(const Op& op) {
    return ir::is_collective(op, mesh::Collective::AllGather) || op.kind == ir::kSlice || op.kind == ir::kRename;
}

struct Halves {
    Routine input, weight;
};

Halves split(const Routine& backward) {
    const std::vector<bool> first = input_part(backward);
    std::vector<const Op*> maker(backward.tensors.size(), nullptr);  // in the first part
    for (size_t i = 0; i < backward.ops.size(); ++i) {
        for (TensorId t : backward.ops[i].out) {
            if (first[i]) maker[t] = &backward.ops[i];
        }
    }
    // What the second part needs of the first: made again, or kept.
    std::vector<bool> needed(backward.tensors.size(), false), kept(backward.tensors.size(), false);
    for (size_t i = 0; i < backward.ops.size(); ++i) {
        if (first[i]) continue;
        for (TensorId t : backward.ops[i].in) needed[t] = true;
    }
    std::vector<bool> again(backward.ops.size(), false);
    for (size_t i = backward.ops.size(); i-- > 0;) {
        const Op& op = backward.ops[i];
        const bool read = std::any_of(op.out.begin(), op.out.end(), [&](TensorId t) { return needed[t] && maker[t] == &op; });
        if (!first[i] || !read) continue;
        again[i] = is_made_again(op);
        for (TensorId t : again[i] ? op.in : op.out) (again[i] ? needed : kept)[t] = again[i] || needed[t];
    }
    Halves out{backward, backward};
    out.input.ops.clear(), out.weight.ops.clear();
    for (size_t i = 0; i < backward.ops.size(); ++i) {
        if (first[i]) out.input.ops.push_back(backward.ops[i]);
        if (!first[i] || again[i]) out.weight.ops.push_back(backward.ops[i]);
    }
    for (const bool writes : {true, false}) {
        Routine& r = writes ? out.input : out.weight;
        const auto port = static_cast<int>(r.ports.size());
        for (size_t t = 0; t < kept.size(); ++t) {
            if (!kept[t] || r.tensors[t].port >= 0) continue;
            if (static_cast<int>(r.ports.size()) == port)
                r.ports.push_back({"frame.weight", PortKind::Frame, writes ? Access::Write : Access::Read});
            r.tensors[t].port = port;
            r.tensors[t].source = r.tensors[t].name;
        }
    }
    return out;
}

std::vector<bool> used_by(const Routine& r) {
    std::vector<bool> used(r.tensors.size(), false);
    for (const Op& op : r.ops) {
        for (TensorId t : op.in) used[t] = true;
        for (TensorId t : op.out) used[t] = true;
    }
    return used;
}

// A routine's ports hold only what its ops use: gradients that the other part adds to and d.x are not its own.
void drop_unused(Routine& r) {
    const std::vector<bool> used = used_by(r);
    for (size_t t = 0; t < used.size(); ++t) {
        if (!used[t]) r.tensors[t].port = -1;
    }
    ops::renumber(r);
}

// `variant`: of the block's backwards, from 1.
void make_part(Routine& r, RoutineKind kind, int variant) {
    r.kind = kind;
    r.name = fmt::format("{}.{}{}", r.block, name_of(kind), variant > 1 ? fmt::format(".{}", variant) : "");
}

// The parts that use a value of a port.
struct Users {
    bool input = false, weight = false;
};
using UsersBySource = std::map<std::string, Users>;

// Of the values of a backward's port. The parts still have its tensors and ports.
UsersBySource users_of(const Routine& backward, int port, const Halves& parts) {
    if (port < 0) return {};
    const std::vector<bool> input = used_by(parts.input), weight = used_by(parts.weight);
    UsersBySource out;
    for (size_t t = 0; t < backward.tensors.size(); ++t) {
        if (backward.tensors[t].port != port) continue;
        Users& users = out[backward.tensors[t].source];
        users.input = users.input || input[t], users.weight = users.weight || weight[t];
    }
    return out;
}

// The values of a port go to the ports that `name_for` says, by who uses them.
template <class NameFor>
void divide_port(Routine& r, int whole, const UsersBySource& users, const NameFor& name_for) {
    if (whole < 0) return;
    std::map<std::string, int> port_of = {{r.ports[whole].name, whole}};  // by its name
    for (ir::Tensor& t : r.tensors) {
        if (t.port != whole) continue;
        const auto [at, is_new] = port_of.try_emplace(name_for(users.at(t.source)), static_cast<int>(r.ports.size()));
        if (is_new) r.ports.push_back({at->first, r.ports[whole].kind, r.ports[whole].access});
        t.port = at->second;
    }
}

// The forward that saves for this backward: of the same block, for the same instances.
Routine& forward_of(std::vector<Routine>& routines, const Routine& backward) {
    const auto at = std::find_if(routines.begin(), routines.end(), [&](const Routine& r) {
        return r.kind == RoutineKind::Forward && r.block == backward.block && r.entry == backward.entry &&
               r.instances == backward.instances;
    });
    ensure(at != routines.end(), "split_backward: no forward belongs to " + backward.name);
    return *at;
}

const char* frame_for(const Users& users) {
    if (!users.weight) return "frame";
    return users.input ? "frame.both" : "frame.kept";
}
const char* gradients_for(const Users& users) { return users.weight ? "gradients.weight" : "gradients"; }

// The parts of a backward, with ports of their own; those of its forward and of itself are divided as theirs are.
Halves divide(Routine& forward, Routine& backward, WholeBackward whole) {
    Halves parts = split(backward);
    const int frame = port_of(backward, PortKind::Frame), gradients = port_of(backward, PortKind::Gradients);
    const UsersBySource readers = users_of(backward, frame, parts), adders = users_of(backward, gradients, parts);
    divide_port(forward, port_of(forward, PortKind::Frame), readers, frame_for);
    for (Routine* r : {&parts.input, &parts.weight, &backward}) divide_port(*r, frame, readers, frame_for);
    // Where whole backwards stay, the first part may be the first that adds to its gradients when the second is not to its own,
    // as a whole backward came between them: those of the second have a port of their own, in the whole backward too.
    if (whole == WholeBackward::Keep) {
        for (Routine* r : {&parts.weight, &backward}) divide_port(*r, gradients, adders, gradients_for);
    }
    drop_unused(parts.input), drop_unused(parts.weight);
    ops::renumber(forward), ops::renumber(backward);
    return parts;
}

}  // namespace

ir::Program split_backward(ir::Program program, WholeBackward whole) {
    std::vector<Routine> routines = std::move(program.routines), out;
    std::vector<std::vector<Routine>> made(routines.size());  // in the place of a backward
    std::map<std::string, int> variants;                      // of a block's backward, so far
    for (size_t i = 0; i < routines.size(); ++i) {
        Routine& backward = routines[i];
        if (backward.kind != RoutineKind::Backward) continue;
        Halves parts = divide(forward_of(routines, backward), backward, whole);
        const int variant = ++variants[backward.block];
        make_part(parts.input, RoutineKind::BackwardInput, variant);
        make_part(parts.weight, RoutineKind::BackwardWeight, variant);
        if (whole == WholeBackward::Keep) made[i].push_back(backward);
        if (!parts.input.ops.empty()) made[i].push_back(std::move(parts.input));
        if (!parts.weight.ops.empty()) made[i].push_back(std::move(parts.weight));
    }
    for (size_t i = 0; i < routines.size(); ++i) {
        if (routines[i].kind != RoutineKind::Backward) out.push_back(std::move(routines[i]));
        for (Routine& r : made[i]) out.push_back(std::move(r));
    }
    program.routines = std::move(out);
    return program;
}

}  // namespace lockstep::passes
