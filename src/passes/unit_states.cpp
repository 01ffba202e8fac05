#include "passes/unit_states.h"

namespace lockstep::passes {

using ir::RoutineKind;
using ir::Scope;
using ir::State;
using ir::StateRole;

namespace {

// The pipeline rank that updates the unit's parameters.
int64_t owner_of(const ir::Program& program, const ir::Unit& unit) {
    return unit.mirror ? program.param(unit.segments[0].members[0].param)->holders[0] : program.pipeline_rank;
}

}  // namespace

void add_unit_states(ir::Program& program, const ir::Unit& unit, const PartitionOptions& options, std::optional<Dtype> sums) {
    const auto add = [&](const char* name, StateRole role, Scope scope, Dtype type, const ir::AxisList& split,
                         std::optional<RoutineKind> writer) -> State& {
        State s;
        s.name = name, s.role = role, s.scope = scope, s.unit = unit.name;
        s.dtype = type, s.split = split, s.writer = writer;
        s.owner = owner_of(program, unit);
        return program.states[static_cast<size_t>(program.add(std::move(s)))];
    };
    const bool updates = sums && !unit.mirror;
    const std::optional<RoutineKind> writer = updates ? std::optional(RoutineKind::Update)
                                              : sums  ? std::optional(RoutineKind::Transfer)
                                                      : std::nullopt;
    if (updates && unit.has_master()) {
        State& master = add("master", StateRole::Master, Scope::Run, unit.master, unit.optimizer, writer);
        master.init.reset();
        master.saved = "{}";
    }
    State& weights = add("weights", StateRole::Weights, Scope::Run, unit.storage, unit.weights, writer);
    weights.init.reset();
    if (updates && unit.has_master()) weights.copy_of = program.state(StateRole::Master, unit.name);
    else if (!unit.mirror) weights.saved = "{}";
    if (unit.is_fetched()) add("secondary", StateRole::Secondary, Scope::Step, unit.compute, unit.secondary, {});
    if (!sums) return;
    for (size_t k = 0; updates && k < options.optimizer.rules.size(); ++k) {
        std::vector<int> served;
        for (size_t i = 0; i < unit.segments.size(); ++i) {
            if (unit.segments[i].rule == static_cast<int>(k)) served.push_back(static_cast<int>(i));
        }
        if (served.empty()) continue;
        const UpdateRule& rule = options.optimizer.rules[k];
        for (const std::string& name : rule.states) {
            const Dtype type = rule.narrow.value_or(unit.master);
            State& s = add(name.c_str(), StateRole::Moment, Scope::Run, type, unit.optimizer, writer);
            s.saved = name + ".{}";
            if (served.size() < unit.segments.size()) s.segments = served;
        }
    }
    if (updates && options.outer) {
        State& anchor = add("anchor", StateRole::Anchor, Scope::Run, unit.master, unit.optimizer, RoutineKind::Outer);
        anchor.init.reset();
        anchor.saved = "anchor.{}";
        if (options.outer->momentum != 0)
            add("outer_momentum", StateRole::OuterMomentum, Scope::Run, unit.master, unit.optimizer, RoutineKind::Outer).saved =
                "outer_momentum.{}";
    }
    add("gradients", StateRole::Gradients, Scope::Step, *sums, unit.gradients, {});
    if (unit.optimizer.size() > unit.gradients.size()) add("reduced", StateRole::Reduced, Scope::Step, *sums, unit.optimizer, {});
    const size_t states = program.states.size();
    for (size_t i = 0; options.snapshot && i < states; ++i) {
        const State of = program.states[i];
        if (of.unit != unit.name || of.saved.empty()) continue;
        const std::string name = "snapshot." + of.name;
        State& copy = add(name.c_str(), StateRole::Copy, Scope::Run, of.dtype, of.split, RoutineKind::Snapshot);
        copy.copy_of = static_cast<ir::StateId>(i), copy.segments = of.segments;
        copy.place = ir::usual_place(copy.role);
    }
}

void add_step_states(ir::Program& program) {
    const auto add = [&](const char* name, StateRole role, Scope scope, std::optional<RoutineKind> writer = {}) -> State& {
        State s;
        s.name = name, s.role = role, s.scope = scope, s.dtype = Dtype::F64, s.writer = writer;
        return program.states[static_cast<size_t>(program.add(std::move(s)))];
    };
    add("norm2", StateRole::SquaredNorm, Scope::Step);
    add("control", StateRole::Control, Scope::Step);
    add("lr", StateRole::LearningRate, Scope::Entry);
    add("steps", StateRole::Steps, Scope::Run, RoutineKind::Stats).saved = "steps";
}

}  // namespace lockstep::passes
