#include "ops/verify_states.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <set>
#include <utility>

namespace lockstep::ops {

using ir::Access;
using ir::PortKind;
using ir::Scope;
using ir::StateRole;

namespace {

bool is_of_program(const ir::State& s) { return s.unit.empty() && s.block.empty(); }

std::string wrong_state(const ir::Program& p, const ir::State& s) {
    const ir::Unit* unit = p.unit(s.unit);
    if (!s.unit.empty() && !unit) return "it is of no unit";
    if (!s.block.empty() && !p.block(s.block)) return "it is of no block";
    if (!s.unit.empty() && !s.block.empty()) return "it is of a unit and of a block";
    if (s.unit.empty() && !s.split.empty()) return "it is split, and of no unit";
    const bool ascend = std::adjacent_find(s.segments.begin(), s.segments.end(), std::greater_equal<>()) == s.segments.end();
    if (!s.segments.empty() && (!unit || !ascend || s.segments[0] < 0 || s.segments.back() >= std::ssize(unit->segments)))
        return "it covers segments that its unit lacks";
    if (s.copy_of >= static_cast<int>(p.states.size())) return "it copies no state";
    if (s.copy_of >= 0 && !s.saved.empty()) return "it is saved, and a copy of what is";
    if (!s.saved.empty() && s.scope != Scope::Run) return "it is saved, and does not outlive the run";
    return "";
}

}  // namespace

std::string wrong_states(const ir::Program& p) {
    std::set<std::string> names;
    for (const ir::State& s : p.states) {
        const std::string name = s.full_name(), wrong = wrong_state(p, s);
        if (!names.insert(name).second) return name + ": two states are called so";
        if (!wrong.empty()) return name + ": " + wrong;
    }
    std::set<std::pair<ir::StateId, int64_t>> seen;
    for (const ir::Buffer& b : p.buffers) {
        if (b.state < 0) continue;
        if (b.state >= static_cast<int>(p.states.size())) return b.name + " holds no state";
        const ir::State& s = p.states[static_cast<size_t>(b.state)];
        const bool in_each_entry = s.scope == Scope::Step;
        if (!in_each_entry && !seen.insert({b.state, b.instance}).second)
            return fmt::format("{} has two buffers for instance {}", s.full_name(), b.instance);
    }
    return "";
}

std::string wrong_ports_of_states(const ir::Program& p, const ir::Routine& r) {
    for (const ir::Port& port : r.ports) {
        if (port.kind != PortKind::State) continue;
        const ir::State& s = p.state_of(port);
        const bool writes = s.writer == r.kind || (s.writer == ir::RoutineKind::Update && ir::updates_weights(r.kind));
        if (s.scope != Scope::Step && port.access != Access::Read && !writes)
            return fmt::format("{}: only {} changes {}", r.name, s.writer ? name_of(*s.writer) : "who runs the step",
                               s.full_name());
    }
    for (const ir::Tensor& t : r.tensors) {
        if (t.port < 0 || r.ports[t.port].kind != PortKind::State) continue;
        const ir::State& s = p.state_of(r.ports[t.port]);
        if (t.dtype != s.dtype)
            return fmt::format("{}: {} is {}, and {} is {}", r.name, t.name, name_of(t.dtype), s.full_name(), name_of(s.dtype));
        if (!s.unit.empty() && (t.placement.dims.size() != 1 || t.placement.dims[0] != s.split))
            return fmt::format("{}: {} is not split as {}", r.name, t.name, s.full_name());
    }
    return "";
}

BoundStates::BoundStates(const ir::Program& program) : p_(program) {
    for (const ir::Routine& r : p_.routines) {
        std::vector<const ir::Unit*>& units = units_.emplace_back();
        for (const ir::Port& port : r.ports) units.push_back(p_.unit_of(port));
    }
}

bool BoundStates::agree(const ir::Call& c, size_t at) const {
    const ir::Routine& r = p_.routines[static_cast<size_t>(c.routine)];
    const ir::Port& port = r.ports[at];
    const ir::Buffer& b = p_.buffers[static_cast<size_t>(c.bindings[at].buffer)];
    if (port.kind == PortKind::State)
        return b.state == port.state && b.instance == (is_of_program(p_.state_of(port)) ? 0 : c.instance);
    if (b.state < 0) return true;
    const ir::Unit* unit = units_[static_cast<size_t>(c.routine)][at];
    const ir::State& s = p_.states[static_cast<size_t>(b.state)];
    const bool may = port.kind == PortKind::Params || port.kind == PortKind::Gradients;
    if (!may || !unit) return false;
    const StateRole role = port.kind == PortKind::Params ? ir::read_role(*unit) : StateRole::Gradients;
    return s.unit == unit->name && s.role == role && b.instance == (unit->is_of(r) ? c.instance : 0);
}

}  // namespace lockstep::ops
