#include "check/step_end.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include "check/flat_values.h"

namespace lockstep::check {
namespace {

using ir::Access;
using ir::AxisList;
using ir::PortKind;
using ir::RoutineKind;
using ir::StateRole;
using ir::TensorId;

// One routine that serves a unit, or the whole program.
class StepEnd {
public:
    StepEnd(const ir::Program& program, const ir::Routine& routine)
        : p_(program), r_(routine), unit_(program.unit(routine.unit)), values_(program, routine) {}

    std::string run() {
        for (size_t k = 0; k < r_.ports.size() && wrong_.empty(); ++k) arrive(static_cast<int>(k));
        if (wrong_.empty()) changes_what_it_must();
        if (wrong_.empty()) wrong_ = values_.run();
        for (size_t k = 0; k < r_.ports.size() && wrong_.empty(); ++k) leave(static_cast<int>(k));
        if (wrong_.empty() && ir::exchanges_states(r_)) exchanges_each_once();
        return wrong_;
    }

private:
    void fail(const std::string& what) {
        if (wrong_.empty()) wrong_ = fmt::format("{}: {}", r_.name, what);
    }
    const ir::Tensor& tensor(TensorId t) const { return r_.tensors[static_cast<size_t>(t)]; }
    const ir::State* state_of(const ir::Port& port) const { return port.state >= 0 ? &p_.state_of(port) : nullptr; }
    bool is_of_unit(const ir::Port& port) const { return unit_ && p_.unit_of(port) == unit_; }
    // Of a flat tensor (layout.h): its segment is that of its dim's number.
    int segment_of(TensorId t) const { return tensor(t).dims.empty() ? -1 : tensor(t).dims[0]; }
    const ir::Segment& segment(int s) const { return unit_->segments[static_cast<size_t>(s)]; }

    // A port of the unit has a tensor for each segment, or for each that its state covers; of a transfer for some.
    void covers_all(int port) {
        const ir::State* s = state_of(r_.ports[static_cast<size_t>(port)]);
        const std::vector<TensorId> tensors = r_.port_tensors(port);
        std::vector<int> expected, found;
        for (int i = 0; i < static_cast<int>(unit_->segments.size()); ++i) {
            if (!s || ir::Program::covers(*s, i)) expected.push_back(i);
        }
        for (const TensorId t : tensors) {
            if (tensor(t).dims.size() != 1) return fail(tensor(t).name + " is no segment");
            found.push_back(segment_of(t));
        }
        const bool some =
            r_.kind == RoutineKind::Transfer && std::includes(expected.begin(), expected.end(), found.begin(), found.end());
        if (found != expected && !some)
            fail(fmt::format("port {} has not each segment of {} once", r_.ports[static_cast<size_t>(port)].name, unit_->name));
    }

    void arrive(int port) {
        const ir::Port& at = r_.ports[static_cast<size_t>(port)];
        if (is_of_unit(at)) covers_all(port);
        if (!wrong_.empty() || at.access == Access::Write || at.access == Access::Accumulate) return;
        for (const TensorId t : r_.port_tensors(port))
            values_.set(t, is_of_unit(at) ? of_unit(at, segment_of(t)) : has_amax(at) ? amax_of(t) : of_program(at));
    }

    // What a segment's tensor of the unit holds before the routine.
    FlatValue of_unit(const ir::Port& port, int s) const {
        if (port.kind == PortKind::Params) return {kWeights, s};
        const AxisList partial = ascending(segment(s).grad_partial);
        if (port.kind == PortKind::Gradients) return {kGradient, s, -1, -1, partial};
        switch (const ir::State& state = p_.state_of(port); state.role) {
            case StateRole::Weights:
            case StateRole::Master:
            case StateRole::Secondary: return {kWeights, s};
            case StateRole::Gradients:
            case StateRole::Reduced: {
                const bool is_whole = r_.kind != RoutineKind::ReduceStep && &state == reduced();
                return {kGradient, s, -1, -1, is_whole ? AxisList{} : mesh::subtract(partial, unit_->gradients)};
            }
            case StateRole::Moment: return {kMoment, s, -1, port.state};
            case StateRole::Anchor: return {kAnchor, s};
            case StateRole::OuterMomentum: return {kOuterMomentum, s};
            default: return {};
        }
    }
    bool has_amax(const ir::Port& port) const { return p_.has_role(port, StateRole::WeightsAmax); }
    FlatValue amax_of(TensorId t) const {
        FlatValue out{kAmax};
        out.group = tensor(t).source;
        return out;
    }
    // What holds the gradients that norm and update read.
    const ir::State* reduced() const {
        ir::StateId id = p_.state(StateRole::Reduced, unit_->name);
        if (id < 0) id = p_.state(StateRole::Gradients, unit_->name);
        return id < 0 ? nullptr : &p_.states[static_cast<size_t>(id)];
    }

    // Sums over microbatches are partial as those who add to them say, the norm's squares over all ranks.
    FlatValue of_program(const ir::Port& port) const {
        if (port.kind == PortKind::Input) return {name_of(port.role)};
        if (port.kind != PortKind::State) return {};
        const StateRole role = p_.state_of(port).role;
        FlatValue out{name_of(role)};
        if (role == StateRole::SquaredNorm) out.partial = ascending(p_.mesh.world());
        if (role != StateRole::LossSum && role != StateRole::TargetCount) return out;
        for (const ir::Routine& adder : p_.routines) {
            const int k = adder.port_of_state(port.state);
            if (k < 0 || adder.entry != r_.entry || adder.ports[static_cast<size_t>(k)].access != Access::Accumulate) continue;
            out.partial = ascending(adder.tensors[static_cast<size_t>(adder.port_tensors(k).at(0))].placement.partial);
        }
        return out;
    }

    // What a tensor of the port must hold in the end; nothing: whatever it is, nobody reads it.
    std::optional<FlatValue> left(const ir::Port& port, int s) const {
        const bool updates = ir::updates_weights(r_.kind);
        if (port.kind == PortKind::Params) return FlatValue{kWeights, s};
        if (port.kind != PortKind::State) return std::nullopt;
        switch (const ir::State& state = p_.state_of(port); state.role) {
            case StateRole::Weights:
            case StateRole::Master: return FlatValue{updates ? kNewWeights : kWeights, s};
            case StateRole::Secondary: return FlatValue{kWeights, s};
            case StateRole::Gradients:
            case StateRole::Reduced:
                if (r_.kind == RoutineKind::Transfer) return FlatValue{kMirrored, s};
                if (r_.kind == RoutineKind::ReduceMicro)
                    return FlatValue{kGradient, s, -1, -1, mesh::subtract(ascending(segment(s).grad_partial), unit_->gradients)};
                if (&state != reduced()) return std::nullopt;
                return FlatValue{kGradient, s};
            case StateRole::Moment: return FlatValue{kNewMoment, s, -1, port.state};
            case StateRole::Anchor: return FlatValue{kNewAnchor, s};
            case StateRole::OuterMomentum: return FlatValue{kNewOuterMomentum, s};
            case StateRole::Control: return FlatValue{kNewControl};
            case StateRole::Steps: return FlatValue{kNewSteps};
            case StateRole::LossScale: return FlatValue{kNewLossScale};
            case StateRole::GrowthTracker: return FlatValue{kNewGrowthTracker};
            case StateRole::InverseCount:
            case StateRole::LossSeed: return FlatValue{name_of(state.role)};
            case StateRole::TotalLoss: return FlatValue{name_of(StateRole::LossSum)};
            case StateRole::TotalCount: return FlatValue{name_of(StateRole::TargetCount)};
            case StateRole::TargetCount: {
                const ir::Tensor& sum = tensor(r_.port_tensors(r_.port_of_state(port.state)).at(0));
                return FlatValue{name_of(state.role), -1, -1, -1, ascending(sum.placement.partial)};
            }
            default: return FlatValue{};
        }
    }

    void leave(int port) {
        const ir::Port& at = r_.ports[static_cast<size_t>(port)];
        if (at.access == Access::Read || r_.kind == RoutineKind::Free) return;
        for (const TensorId t : r_.port_tensors(port)) {
            if (p_.has_role(at, StateRole::SquaredNorm)) return counts_each_once(t);
            const std::optional<FlatValue> expected = has_amax(at) ? amax_of(t) : left(at, is_of_unit(at) ? segment_of(t) : -1);
            if (!expected) continue;
            const std::vector<FlatValue>& added = values_.added_to(t);
            if (at.access == Access::Accumulate && added.size() != 1)
                return fail(fmt::format("adds to {} {} times", tensor(t).name, added.size()));
            const FlatValue& found = at.access == Access::Accumulate ? added[0] : values_[t];
            if (found != *expected)
                fail(
                    fmt::format("leaves {} in {}, where {} belongs", text_of(p_, found), tensor(t).name, text_of(p_, *expected)));
        }
    }

    void counts_each_once(TensorId norm) {
        std::vector<int> times(unit_ ? unit_->segments.size() : 0, 0);
        for (const FlatValue& v : values_.added_to(norm)) {
            if (v.what != kSquares) return fail(fmt::format("adds {} to the norm", text_of(p_, v)));
            ++times[static_cast<size_t>(v.segment)];
        }
        for (size_t s = 0; s < times.size(); ++s) {
            if (times[s] != 1) fail(fmt::format("counts segment {} {} times in the norm", s, times[s]));
        }
    }

    // The states that a routine of this kind changes have each a port that is not only read.
    void changes_what_it_must() {
        for (size_t i = 0; i < p_.states.size(); ++i) {
            const ir::State& s = p_.states[i];
            const int port = r_.port_of_state(static_cast<ir::StateId>(i));
            if (s.unit != r_.unit || !s.block.empty() || !must_change(s)) continue;
            if (port < 0 || r_.ports[static_cast<size_t>(port)].access == Access::Read)
                fail(fmt::format("does not change {}", s.full_name()));
        }
        const bool gathers = std::any_of(r_.ports.begin(), r_.ports.end(), [](const ir::Port& port) {
            return port.kind == PortKind::Params && port.access == Access::Write;
        });
        if (r_.kind == RoutineKind::Gather && !gathers) fail("gathers nothing");
        if (r_.kind == RoutineKind::Stats && unit_ && r_.port_of_state(p_.state(StateRole::SquaredNorm)) < 0)
            fail("adds nothing to the norm");
    }
    bool must_change(const ir::State& s) const {
        const bool weights = s.is_weights(), evaluates = r_.entry == ir::EntryKind::Eval;
        switch (r_.kind) {
            case RoutineKind::Update: return weights || s.role == StateRole::Moment;
            case RoutineKind::Outer: return weights || s.is_of_all_islands();
            case RoutineKind::Fetch: return s.role == StateRole::Secondary;
            case RoutineKind::ReduceMicro: return s.role == StateRole::Gradients;
            case RoutineKind::ReduceStep: return &s == reduced() && !r_.ops.empty();
            case RoutineKind::Stats:
                if (unit_) return false;
                if (evaluates) return s.role == StateRole::TotalLoss || s.role == StateRole::TotalCount;
                return s.role == StateRole::Control || s.role == StateRole::Steps || s.role == StateRole::GrowthTracker ||
                       (s.role == StateRole::LossScale && s.writer.has_value());
            default: return false;
        }
    }

    // Segments that the other pipeline rank has, too, in the unit's order.
    void exchanges_each_once() {
        std::map<int64_t, std::vector<int>> exchanged;  // by peer
        for (const ir::Op& op : r_.ops) {
            if (!ir::is_collective(op, mesh::Collective::Send) && !ir::is_collective(op, mesh::Collective::Recv)) continue;
            exchanged[op.integer("peer")].push_back(segment_of(op.in.empty() ? op.out[0] : op.in[0]));
        }
        for (const auto& [peer, segments] : exchanged) {
            std::vector<int> shared;
            for (size_t s = 0; s < unit_->segments.size(); ++s) {
                const std::vector<ir::Member>& members = unit_->segments[s].members;
                const ir::Parameter* param = members.empty() ? nullptr : p_.param(members[0].param);
                if (param && std::count(param->holders.begin(), param->holders.end(), peer) > 0)
                    shared.push_back(static_cast<int>(s));
            }
            if (segments != shared) fail(fmt::format("exchanges other segments than pipeline rank {} shares", peer));
        }
    }

    const ir::Program& p_;
    const ir::Routine& r_;
    const ir::Unit* const unit_;
    FlatValues values_;
    std::string wrong_;
};

bool is_at_the_end(const ir::Routine& r) {
    const bool of_program = r.unit.empty() && r.block.empty();
    return r.kind != RoutineKind::Snapshot && r.kind != RoutineKind::Free && (of_program || !r.unit.empty());
}

}  // namespace

std::string wrong_step_end(const ir::Program& program) {
    for (const ir::Routine& r : program.routines) {
        if (!is_at_the_end(r)) continue;
        if (std::string wrong = StepEnd(program, r).run(); !wrong.empty()) return wrong;
    }
    return "";
}

}  // namespace lockstep::check
