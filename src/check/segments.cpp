#include "check/segments.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "check/flat_value.h"
#include "ir/sources.h"

namespace lockstep::check {
namespace {

using ir::AxisList;
using ir::StateRole;

// The segment of each parameter.
using SegmentOf = std::map<std::string_view, std::pair<const ir::Unit*, const ir::Segment*>>;

std::string wrong_members(const ir::Program& p, const ir::Unit& u, const ir::Segment& s, SegmentOf& segment_of) {
    for (const ir::Member& m : s.members) {
        const auto wrong = [&](std::string_view what) { return fmt::format("{}: {} {}", u.name, m.param, what); };
        const ir::Parameter* param = p.param(m.param);
        if (!param || param->block != u.block) return wrong("is no parameter of its block");
        if (!segment_of.emplace(m.param, std::pair(&u, &s)).second) return wrong("is there twice");
        if (param->decay != s.decay) return wrong("has another weight decay than its segment");
        if (ascending(param->placement.used()) != ascending(s.shards)) return wrong("is sharded otherwise than its segment");
        if (m.count != ir::local_elements(p.mesh, *param)) return wrong("has another number of elements there");
    }
    return "";
}

// Gradients of a parameter are partial over the axes that its segment says, and those include the optimizer's split.
std::string wrong_gradients(const ir::Program& p, const ir::Routine& r, const SegmentOf& segment_of) {
    for (const ir::Tensor& t : r.tensors) {
        if (t.port < 0 || r.ports[static_cast<size_t>(t.port)].kind != ir::PortKind::Gradients || !r.unit.empty()) continue;
        for (const std::string_view key : ir::sources_of(t)) {
            const auto found = segment_of.find(key);
            if (found == segment_of.end()) return fmt::format("{}: {} is the gradient of no parameter", r.name, t.name);
            const auto& [unit, segment] = found->second;
            const AxisList partial = ascending(segment->grad_partial);
            if (ascending(t.placement.partial) != partial)
                return fmt::format("{}: {} is partial over '{}', and its segment says '{}'", r.name, t.name,
                                   p.mesh.text(ascending(t.placement.partial)), p.mesh.text(partial));
            if (!mesh::is_subset(unit->optimizer, partial))
                return fmt::format("{}: its optimizer is split over ranks that have the same gradients of {}", unit->name, key);
        }
    }
    return "";
}

const AxisList& split_of(const ir::Unit& u, const ir::State& s) {
    switch (s.role) {
        case StateRole::Weights: return u.weights;
        case StateRole::Secondary: return u.secondary;
        case StateRole::Gradients: return u.gradients;
        case StateRole::Copy: return s.split;  // that of the state that it copies
        default: return u.optimizer;
    }
}

// In checkpoints; empty: it is in none. Of a moment as it is.
std::string_view saved_name(const ir::State& s, const ir::Unit* u) {
    switch (s.role) {
        case StateRole::Weights: return s.copy_of >= 0 || (u && u->mirror) ? "" : "{}";
        case StateRole::Master: return "{}";
        case StateRole::Moment: return s.saved;
        case StateRole::Anchor: return "anchor.{}";
        case StateRole::OuterMomentum: return "outer_momentum.{}";
        case StateRole::Steps: return "steps";
        case StateRole::LossScale: return s.writer ? "loss_scale" : "";
        case StateRole::GrowthTracker: return "growth_tracker";
        default: return "";
    }
}

// How long a state of the role keeps its value; nothing: as the program that has it says.
std::optional<ir::Scope> scope_of(StateRole role) {
    switch (role) {
        case StateRole::Weights:
        case StateRole::Master:
        case StateRole::Moment:
        case StateRole::Anchor:
        case StateRole::OuterMomentum:
        case StateRole::Copy:
        case StateRole::Steps:
        case StateRole::LossScale:
        case StateRole::GrowthTracker:
        case StateRole::LossScaleWindow: return ir::Scope::Run;
        case StateRole::LearningRate:
        case StateRole::Cache: return std::nullopt;
        default: return ir::Scope::Step;
    }
}

// The pipeline rank from which others that have the state take it.
int64_t owner_of(const ir::Program& p, const ir::Unit* u) {
    if (!u) return 0;
    const bool has_members = u->mirror && !u->segments.empty() && !u->segments[0].members.empty();
    const ir::Parameter* shared = has_members ? p.param(u->segments[0].members[0].param) : nullptr;
    return shared && !shared->holders.empty() ? shared->holders[0] : p.pipeline_rank;
}

std::string wrong_state(const ir::Program& p, const ir::State& s, std::set<std::pair<std::string, std::string>>& saved) {
    const ir::Unit* u = p.unit(s.unit);
    const auto wrong = [&](const std::string& what) { return fmt::format("{}: {}", s.full_name(), what); };
    if (u && s.split != split_of(*u, s)) return wrong("is split otherwise than its unit says");
    if (const auto scope = scope_of(s.role); scope && s.scope != *scope)
        return wrong(fmt::format("is of the scope {}, not {}", name_of(s.scope), name_of(*scope)));
    if (s.block.empty() && s.owner != owner_of(p, u))
        return wrong(fmt::format("is of pipeline rank {}, and {} updates it", s.owner, owner_of(p, u)));
    const bool follows = s.role == StateRole::Weights || s.role == StateRole::Copy;
    if (s.copy_of >= 0 && !follows) return wrong("copies another state");
    const std::string_view name = saved_name(s, u);
    if (s.saved != name) return wrong(fmt::format("checkpoints call it '{}', not '{}'", s.saved, name));
    if (s.role == StateRole::Weights && s.copy_of >= 0 && s.copy_of != p.state(StateRole::Master, s.unit))
        return wrong("follows another state than its unit's master weights");
    if (s.begins_as_weights() != !s.init.has_value()) return wrong("does not begin as states of its role do");
    if (!s.saved.empty() && s.init && *s.init != 0 && s.role != StateRole::LossScale) return wrong("does not begin with zeros");
    if (s.saved.empty()) return "";
    if (!u) return saved.insert({s.saved, ""}).second ? "" : wrong("another state is saved under its name");
    for (size_t i = 0; i < u->segments.size(); ++i) {
        if (!ir::Program::covers(s, static_cast<int>(i))) continue;
        for (const ir::Member& m : u->segments[i].members) {
            if (!saved.insert({s.saved, m.param}).second)
                return wrong(fmt::format("another state of {} is saved under its name", m.param));
        }
    }
    return "";
}

}  // namespace

std::string wrong_segments(const ir::Program& p) {
    SegmentOf segment_of;
    for (const ir::Unit& u : p.units) {
        for (const ir::Segment& s : u.segments) {
            if (std::string wrong = wrong_members(p, u, s, segment_of); !wrong.empty()) return wrong;
        }
    }
    std::set<std::pair<std::string_view, int64_t>> names;  // of instances
    for (const ir::Parameter& x : p.params) {
        if (!segment_of.contains(x.key)) return fmt::format("{} is in no unit", x.key);
        for (const int64_t i : p.block(x.block)->all()) {
            if (!names.insert({x.name, i}).second) return fmt::format("{}: another parameter is called {}, too", x.key, x.name);
        }
    }
    for (const ir::Routine& r : p.routines) {
        if (std::string wrong = wrong_gradients(p, r, segment_of); !wrong.empty()) return wrong;
    }
    std::set<std::pair<std::string, std::string>> saved;  // name, parameter
    for (const ir::State& s : p.states) {
        if (std::string wrong = wrong_state(p, s, saved); !wrong.empty()) return wrong;
    }
    return "";
}

}  // namespace lockstep::check
