#include "passes/split_backward.h"

#include <algorithm>
#include <map>
#include <string>

#include "base/error.h"
#include "ops/builder.h"

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
        if (op.kind == "accumulate" && made[op.in[0]]) part[i] = true;
        for (TensorId t : op.out) made[t] = made[t] || part[i];
    }
    return part;
}

// Cheap, or a collective that takes the room of its result to save: made again.
bool is_made_again(const Op& op) { return op.kind == "all_gather" || op.kind == "slice" || op.kind == "rename"; }

struct Parts {
    Routine input, weight;
};

Parts split(const Routine& backward) {
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
    Parts out{backward, backward};
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

// A routine's ports hold only what its ops use: gradients that the other part adds to and d.x are not its own.
void drop_unused(Routine& r) {
    std::vector<bool> used(r.tensors.size(), false);
    for (const Op& op : r.ops) {
        for (TensorId t : op.in) used[t] = true;
        for (TensorId t : op.out) used[t] = true;
    }
    for (size_t t = 0; t < used.size(); ++t) {
        if (!used[t]) r.tensors[t].port = -1;
    }
    ops::renumber(r);
}

void rename(Routine& r, RoutineKind kind, const std::string& word) {
    r.kind = kind;
    r.name.replace(r.block.size() + 1, std::string("backward").size(), word);
}

std::vector<std::string> sources_in(const Routine& r, std::string_view port) {
    std::vector<std::string> out;
    for (const ir::Tensor& t : r.tensors) {
        if (t.port >= 0 && r.ports[t.port].name == port) out.push_back(t.source);
    }
    return out;
}

// The tensors of a port go to the ports of their classes, by source.
void divide_port(Routine& r, const std::string& from, const std::map<std::string, std::string>& class_of) {
    const int whole = r.port(from);
    if (whole < 0) return;
    for (size_t t = 0; t < r.tensors.size(); ++t) {
        if (r.tensors[t].port != whole) continue;
        const std::string& name = class_of.at(r.tensors[t].source);
        if (name == from) continue;
        int port = r.port(name);
        if (port < 0) {
            port = static_cast<int>(r.ports.size());
            r.ports.push_back({name, r.ports[whole].kind, r.ports[whole].access});
        }
        r.tensors[t].port = port;
    }
    ops::renumber(r);
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

// Where both ways occur, the first part may be the first that adds to its gradients when the second is not to its own, as a whole
// backward came between them: those of the second have a port of their own, in the whole backward too.
void divide_gradients(Parts& parts, Routine& backward) {
    std::map<std::string, std::string> class_of;
    for (const std::string& s : sources_in(backward, "gradients")) class_of[s] = "gradients";
    for (const std::string& s : sources_in(parts.weight, "gradients")) class_of[s] = "gradients.weight";
    for (Routine* r : {&parts.weight, &backward}) divide_port(*r, "gradients", class_of);
}

}  // namespace

ir::Program split_backward(ir::Program program, WholeBackward whole) {
    std::vector<Routine> routines = std::move(program.routines), out;
    std::map<std::string, std::vector<Routine>> made;  // by the backward's name
    for (Routine& backward : routines) {
        if (backward.kind != RoutineKind::Backward) continue;
        Parts parts = split(backward);
        drop_unused(parts.input), drop_unused(parts.weight);
        const std::vector<std::string> by_input = sources_in(parts.input, "frame"), by_weight = sources_in(parts.weight, "frame");
        std::map<std::string, std::string> class_of;
        for (const std::string& s : by_input) class_of[s] = "frame";
        for (const std::string& s : by_weight) class_of[s] = class_of.contains(s) ? "frame.both" : "frame.kept";
        Routine& forward = forward_of(routines, backward);
        for (Routine* r : {&parts.input, &parts.weight, &forward, &backward}) divide_port(*r, "frame", class_of);
        if (whole == WholeBackward::Keep) divide_gradients(parts, backward);
        rename(parts.input, RoutineKind::BackwardInput, "backward_input");
        rename(parts.weight, RoutineKind::BackwardWeight, "backward_weight");
        std::vector<Routine>& list = made[backward.name];
        if (whole == WholeBackward::Keep) list.push_back(backward);
        if (!parts.input.ops.empty()) list.push_back(std::move(parts.input));
        if (!parts.weight.ops.empty()) list.push_back(std::move(parts.weight));
    }
    for (Routine& r : routines) {
        const auto at = made.find(r.name);
        if (at == made.end()) out.push_back(std::move(r));
        else out.insert(out.end(), at->second.begin(), at->second.end());
    }
    program.routines = std::move(out);
    return program;
}

}  // namespace lockstep::passes
