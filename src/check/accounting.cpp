#include "check/accounting.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "ops/rule.h"

namespace lockstep::check {
namespace {

using ir::Access;
using ir::EntryKind;
using ir::PortKind;
using ir::PortRole;
using ir::RoutineKind;
using ir::StateRole;

// A unit of one block instance.
using UnitInstance = std::pair<std::string, int64_t>;
// What one call adds: microbatch, chunk, number of who adds (`contributor`), instance.
using Part = std::tuple<int64_t, int64_t, int, int64_t>;
// Parts of every tensor of a unit's buffer, by offset.
using Parts = std::map<int64_t, std::set<Part>>;

struct Gradient {
    Parts full;             // in the rank's own buffer, not reduced
    Parts reduced;          // in the shard
    bool finished = false;  // reduce_step has run
};

class Accounting {
public:
    Accounting(const ir::Program& program, const ir::Entry& entry) : p_(program), e_(entry) {
        std::map<std::string_view, int> backwards;  // by block
        for (const ir::Routine& r : p_.routines) {
            // A backward, and the two parts into which it may be split, contribute the same.
            const auto number = static_cast<int>(contributors_.size());
            contributors_.push_back(ir::is_backward(r.kind) ? backwards.emplace(r.block, number).first->second : number);
            std::vector<const ir::Unit*>& units = units_.emplace_back();
            for (const ir::Port& port : r.ports) units.push_back(p_.unit_of(port));
        }
        for (const ir::Entry& e : p_.entries) {
            for (const ir::Call& c : e.calls) {
                const ir::Routine& r = p_.routines[c.routine];
                for (size_t k = 0; k < c.bindings.size(); ++k) {
                    if (r.ports[k].kind == PortKind::Input) input_of_.emplace(c.bindings[k].buffer, e.kind);
                }
            }
        }
    }

    std::string run() {
        for (size_t i = 0; i < e_.calls.size() && wrong_.empty(); ++i) call(static_cast<int>(i));
        if (e_.kind == EntryKind::Snapshot) complete_snapshot();
        if (e_.kind == EntryKind::Outer) all_meet_once();
        if (e_.kind == EntryKind::Eval && !finished_ && !losses().empty() && wrong_.empty())
            wrong_ = "the loss is never summed over all ranks";
        if (!wrong_.empty() || e_.kind != EntryKind::Train) return wrong_;
        for (const ir::Unit& u : p_.units) {
            for (int64_t i : p_.instances(u)) {
                if (!updated_.contains({u.name, i})) return fmt::format("{}[{}] is never updated", u.name, i);
            }
            if (!exchanged(u.name, true) || !exchanged(u.name, false)) return u.name + " is not exchanged with its mirror";
        }
        return "";
    }

private:
    void fail(int call, const std::string& what) {
        const ir::Call& c = e_.calls[call];
        if (wrong_.empty())
            wrong_ = fmt::format("call {} of {}[{}] in microbatch {}: {}", call, p_.routines[c.routine].name, c.instance,
                                 c.microbatch, what);
    }

    static UnitInstance place(const ir::Routine& r, const ir::Unit& u, int64_t instance) {
        return {u.name, u.is_of(r) ? instance : 0};
    }

    bool is_cache(const ir::Port& port) const { return p_.has_role(port, StateRole::Cache); }

    void cache(int i, const ir::Routine& r, int port) {
        if (e_.calls[i].microbatch != 0) fail(i, "binds a cache, which belongs to one microbatch");
        for (ir::TensorId t : r.port_tensors(port)) {  // a token's own key is there when its query looks for it
            const auto first = std::find_if(r.ops.begin(), r.ops.end(), [&](const ir::Op& op) {
                return std::find(op.in.begin(), op.in.end(), t) != op.in.end();
            });
            if (first == r.ops.end() || first->kind != ir::kAppend)
                fail(i, fmt::format("reads {} without having appended to it", r.tensors[t].name));
        }
    }

    int contributor(const ir::Routine& r) const { return contributors_[static_cast<size_t>(&r - p_.routines.data())]; }
    Part part_of(const ir::Routine& r, const ir::Call& c) const { return {c.microbatch, c.chunk, contributor(r), c.instance}; }

    // Every contribution that a unit instance must receive in a step.
    const Parts& expected(const UnitInstance& at) const {
        const auto [known, is_new] = expected_.try_emplace(at);
        if (is_new) known->second = contributions_to(at);
        return known->second;
    }
    Parts contributions_to(const UnitInstance& at) const {
        Parts out;
        const ir::Unit& unit = *p_.unit(at.first);
        for (const ir::Routine& r : p_.routines) {
            for (size_t k = 0; k < r.ports.size(); ++k) {
                const ir::Port& port = r.ports[k];
                if (port.kind != PortKind::Gradients || port.access != Access::Accumulate || port.unit != at.first ||
                    r.entry != EntryKind::Train)
                    continue;
                if (!unit.is_of(r) && at.second != 0) continue;
                for (int64_t instance : unit.is_of(r) ? std::vector<int64_t>{at.second} : instances(r.block)) {
                    if (!r.serves(instance)) continue;
                    for (ir::TensorId t : r.port_tensors(static_cast<int>(k))) {
                        for (int64_t part = 0; part < r.chunks * p_.microbatches; ++part)
                            out[r.tensors[t].offset_bytes].insert({part / r.chunks, part % r.chunks, contributor(r), instance});
                    }
                }
            }
        }
        return out;
    }
    std::vector<int64_t> instances(const std::string& block) const {
        const ir::Block* b = p_.block(block);
        return b ? b->instances() : std::vector<int64_t>{0};
    }

    // Is the gradient that a buffer holds the whole of the step's, reduced as far as it will be before reduce_step?
    bool complete(const ir::Unit& u, const UnitInstance& at, const Gradient& g) const {
        return u.gradients.empty() ? g.full == expected(at) : g.full.empty() && g.reduced == expected(at);
    }
    bool needs_reduce_step(const ir::Unit& u) const { return !p_.routine(RoutineKind::ReduceStep, u.name)->ops.empty(); }

    // All calls that bind a state's buffer bind it for the same unit instance.
    void own(int call, int buffer, const UnitInstance& at) {
        const auto [it, is_new] = owner_.emplace(buffer, at);
        if (!is_new && it->second != at)
            fail(call,
                 fmt::format("binds {}, which belongs to {}[{}]", p_.buffers[buffer].name, it->second.first, it->second.second));
    }

    // A state of the program, or of an instance of a block, has one buffer in an entry, and a buffer one such state.
    void program_state(int call, ir::StateId id, int buffer) {
        const bool is_of_block = !p_.states[static_cast<size_t>(id)].block.empty();
        const StateInstance state = {id, is_of_block ? e_.calls[call].instance : 0};
        const int known = buffer_of_state_.emplace(state, buffer).first->second;
        if (known != buffer || state_of_buffer_.emplace(buffer, state).first->second != state) {
            fail(call, fmt::format("takes {} for the state {}", p_.buffers[buffer].name,
                                   p_.states[static_cast<size_t>(id)].full_name()));
        }
    }

    // What a buffer of inputs, activations or saved values holds: microbatch, instance of a block (inputs: of none), its name.
    using Data = std::tuple<int64_t, int64_t, std::string_view, std::string_view>;
    static std::string text_of(const Data& d) {
        const auto& [microbatch, instance, block, name] = d;
        const std::string of = block.empty() ? "" : fmt::format(" of {}[{}]", block, instance);
        return fmt::format("{}{} in microbatch {}", name, of, microbatch);
    }

    // The activation between two blocks is of the one that makes it: x of a block is y of the one before.
    Data data_of(const ir::Routine& r, const ir::Port& port, const ir::Call& c) const {
        if (port.kind == PortKind::Input) return {c.microbatch, 0, "", port.name};
        const bool from_before = port.role == PortRole::X || port.role == PortRole::DX;
        if (!from_before)
            return {c.microbatch, c.instance, r.block, port.role == PortRole::None ? port.name : name_of(port.role)};
        const std::string_view name = name_of(port.role == PortRole::X ? PortRole::Y : PortRole::DY);
        size_t block = 0;
        while (block + 1 < p_.blocks.size() && p_.blocks[block].name != r.block) ++block;
        if (c.instance > p_.blocks[block].first) return {c.microbatch, c.instance - 1, r.block, name};
        const ir::Block& before = p_.blocks[std::max<size_t>(block, 1) - 1];
        return {c.microbatch, before.last(), before.name, name};
    }

    // Each is in one buffer, which holds nothing else.
    void data(int call, const ir::Routine& r, const ir::Port& port, int buffer) {
        if (port.kind != PortKind::Frame && port.kind != PortKind::Input && port.kind != PortKind::Value) return;
        if (const auto input = input_of_.find(buffer); input != input_of_.end() && input->second != e_.kind)
            fail(call, fmt::format("takes {}, which is an input of {}", p_.buffers[buffer].name, name_of(input->second)));
        const Data data = data_of(r, port, e_.calls[call]);
        const auto it = data_owner_.emplace(buffer, data).first;
        if (it->second != data)
            fail(call,
                 fmt::format("takes {} for {}, and it holds {}", p_.buffers[buffer].name, text_of(data), text_of(it->second)));
        if (buffer_of_.emplace(data, buffer).first->second != buffer)
            fail(call, fmt::format("takes {} for {}, which is elsewhere", p_.buffers[buffer].name, text_of(data)));
    }

    // Adds one part to a sum over the step, such as the loss: each once, and fresh only where nothing is yet.
    template <class T>
    void add(int call, std::set<T>& sum, const T& part, bool fresh, const char* what) {
        if (fresh) sum.clear();
        if (!sum.insert(part).second) fail(call, fmt::format("adds to {} twice", what));
    }

    void call(int i) {
        const ir::Call& c = e_.calls[i];
        const ir::Routine& r = p_.routines[c.routine];
        for (size_t k = 0; k < c.bindings.size(); ++k) {
            const ir::Port& port = r.ports[k];
            const ir::Binding& b = c.bindings[k];
            if (port.kind == PortKind::State && port.access == Access::Accumulate) {
                const StateRole role = p_.state_of(port).role;
                if (role == StateRole::LossSum) add(i, loss_, part_of(r, c), b.fresh, "the loss");
                if (role == StateRole::TargetCount) add(i, count_, c.microbatch, b.fresh, "the number of targets");
                if (role == StateRole::SquaredNorm) add(i, norm_, UnitInstance{r.unit, c.instance}, b.fresh, "the norm");
            }
            const ir::Unit* const unit = units_[static_cast<size_t>(c.routine)][k];
            if (port.kind == PortKind::State && !unit && !is_cache(port)) program_state(i, port.state, b.buffer);
            const bool seeds = p_.has_role(port, StateRole::InverseCount) || p_.has_role(port, StateRole::LossSeed);
            if (seeds && port.access == Access::Read) inverse_read_ = true;
            if (is_cache(port)) cache(i, r, static_cast<int>(k));
            data(i, r, port, b.buffer);
            if (!unit) continue;
            const ir::Unit& u = *unit;
            const UnitInstance at = place(r, u, c.instance);
            const bool copy = p_.has_role(port, StateRole::Secondary);
            const bool weights =
                copy || p_.has_role(port, StateRole::Weights) || (port.kind == PortKind::Params && !u.is_gathered());
            // A copy of weights, and a window of gathered ones, are of one unit instance too.
            const bool read = copy || port.kind == PortKind::Params;
            if (read || (port.kind == PortKind::State && p_.state_of(port).scope == ir::Scope::Run)) own(i, b.buffer, at);
            if (weights && updated_.contains(at) && !ir::updates_weights(r.kind) && r.kind != RoutineKind::Transfer)
                fail(i, "reads weights after their update");
            if (port.kind == PortKind::Gradients && port.access == Access::Accumulate)
                contribute(i, r, static_cast<int>(k), b, contributed_[{&u, at.second}]);
        }
        if (r.kind == RoutineKind::ReduceMicro) reduce_micro(i, r, c);
        if (r.kind == RoutineKind::ReduceStep) reduce_step(i, r, c);
        if (ir::exchanges_states(r)) exchange(i, r, c);
        if (r.kind == RoutineKind::Stats && e_.kind == EntryKind::Train) stats(i, r, c);
        if (r.kind == RoutineKind::Stats && e_.kind == EntryKind::Eval) end(i);
        if (r.kind == RoutineKind::Update) update(i, r, c);
        if (r.kind == RoutineKind::Snapshot) snapshot(i, r, c);
        if (r.kind == RoutineKind::Outer && !updated_.insert({r.unit, c.instance}).second) fail(i, "meets a second time");
        if (r.kind == RoutineKind::Begin && r.port_of_state(p_.state(StateRole::InverseCount)) >= 0) {
            if (static_cast<int64_t>(count_.size()) != p_.microbatches) fail(i, "not every microbatch has been counted");
            if (inverse_read_) fail(i, "changes the number of targets after it was used");
        }
    }

    // before: what was added to the unit instance so far, whether or not it has been reduced since.
    void contribute(int i, const ir::Routine& r, int port, const ir::Binding& b, Parts& before) {
        const ir::Call& c = e_.calls[i];
        Gradient& g = gradients_[b.buffer];
        const Part part = part_of(r, c);
        for (ir::TensorId t : r.port_tensors(port)) {
            std::set<Part>& parts = g.full[r.tensors[t].offset_bytes];
            if (b.fresh) parts.clear();
            parts.insert(part);
            if (!before[r.tensors[t].offset_bytes].insert(part).second)
                fail(i, fmt::format("adds to {} twice", r.tensors[t].name));
        }
        if (g.finished) fail(i, "adds to gradients that are reduced already");
    }

    int port_of(const ir::Routine& r, StateRole role) const { return r.port_of_state(p_.state(role, r.unit)); }
    int buffer_of(const ir::Routine& r, const ir::Call& c, StateRole role) const {
        const int k = port_of(r, role);
        return k < 0 ? -1 : c.bindings[k].buffer;
    }
    // The buffer that is reduced after a microbatch.
    static int local_buffer(const ir::Routine& r, const ir::Call& c) {
        const auto at = std::find_if(r.ports.begin(), r.ports.end(), [](auto& p) { return p.kind == PortKind::Gradients; });
        return at == r.ports.end() ? -1 : c.bindings[at - r.ports.begin()].buffer;
    }

    void reduce_micro(int i, const ir::Routine& r, const ir::Call& c) {
        Gradient& local = gradients_[local_buffer(r, c)];
        Gradient& shard = gradients_[buffer_of(r, c, StateRole::Gradients)];
        if (shard.finished) fail(i, "adds to gradients that are reduced already");
        if (c.bindings[port_of(r, StateRole::Gradients)].fresh) shard.reduced.clear();
        // Parts of any microbatches; reduce_step and update check that none is missing at the end.
        for (const auto& [offset, parts] : local.full) {
            for (const Part& part : parts) {
                if (!shard.reduced[offset].insert(part).second) fail(i, "adds to the gradients' shard twice");
            }
        }
        if (local.full.empty()) fail(i, "reduces nothing");
        local.full.clear();
        shard_of_[buffer_of(r, c, StateRole::Gradients)].insert({r.unit, c.instance});
        if (shard_of_[buffer_of(r, c, StateRole::Gradients)].size() > 1) fail(i, "two units share a shard of gradients");
    }

    void reduce_step(int i, const ir::Routine& r, const ir::Call& c) {
        Gradient& g = gradients_[buffer_of(r, c, StateRole::Gradients)];
        const UnitInstance at = {r.unit, c.instance};
        if (!holds(at, buffer_of(r, c, StateRole::Gradients), g)) fail(i, "the step's gradients are not complete");
        if (g.finished) fail(i, "reduces a second time");
        g.finished = true;
        if (const int reduced = buffer_of(r, c, StateRole::Reduced); reduced >= 0) gradients_[reduced] = g;
        if (const int reduced = buffer_of(r, c, StateRole::Reduced);
            reduced >= 0 && shard_of_.contains(buffer_of(r, c, StateRole::Gradients))) {
            shard_of_[reduced] = shard_of_[buffer_of(r, c, StateRole::Gradients)];
        }
    }

    bool holds(const UnitInstance& at, int buffer, const Gradient& g) const {
        const ir::Unit& u = *p_.unit(at.first);
        if (!complete(u, at, g)) return false;
        const auto it = shard_of_.find(buffer);
        return u.gradients.empty() || (it != shard_of_.end() && it->second == std::set<UnitInstance>{at});
    }

    int reduced_buffer(const ir::Routine& r, const ir::Call& c) const {
        const int b = buffer_of(r, c, StateRole::Reduced);
        return b >= 0 ? b : buffer_of(r, c, StateRole::Gradients);
    }
    bool ready(const ir::Routine& r, const ir::Call& c) {
        const Gradient& g = gradients_[reduced_buffer(r, c)];
        return holds({r.unit, c.instance}, reduced_buffer(r, c), g) && (g.finished || !needs_reduce_step(*p_.unit(r.unit)));
    }

    // The exchange of a shared parameter with the other pipeline ranks that have it. Gradients must be complete and not yet
    // counted. Weights must be updated; a mirror that receives them counts as updated.
    void exchange(int i, const ir::Routine& r, const ir::Call& c) {
        const UnitInstance at = {r.unit, c.instance};
        const bool mirror = p_.unit(r.unit)->mirror;
        if (!exchanged_.insert(c.routine).second) fail(i, "is done a second time");
        if (!p_.has_role(r.ports[0], StateRole::Weights)) {
            if (!ready(r, c)) fail(i, "exchanges gradients that are not complete and reduced");
            if (finished_) fail(i, "exchanges gradients after the step's norm is known");
            if (c.bindings[0].fresh) fail(i, "overwrites gradients with those of a mirror");
            if (counted_.contains(at)) fail(i, "adds to gradients that are counted already");
        } else if (mirror) {
            updated_.insert(at);
        } else if (!updated_.contains(at)) {
            fail(i, "sends weights before their update");
        }
    }
    // The transfers of shared parameters that are in the program have all been done.
    bool exchanged(const std::string& unit, bool weights) const {
        for (size_t i = 0; i < p_.routines.size(); ++i) {
            const ir::Routine& r = p_.routines[i];
            const bool asked = ir::exchanges_states(r) && r.unit == unit && r.entry == e_.kind &&
                               p_.has_role(r.ports[0], StateRole::Weights) == weights;
            if (asked && !exchanged_.contains(static_cast<int>(i))) return false;
        }
        return true;
    }

    void stats(int i, const ir::Routine& r, const ir::Call& c) {
        if (!r.unit.empty()) {
            if (!exchanged(r.unit, false)) fail(i, "counts gradients without their mirrors' part");
            if (!ready(r, c)) fail(i, "counts gradients that are not complete and reduced");
            if (!counted_.insert({r.unit, c.instance}).second) fail(i, "is counted a second time");
            return;
        }
        size_t units = 0;
        for (const ir::Unit& u : p_.units) units += u.mirror ? 0 : p_.instances(u).size();
        if (norm_.size() != units) fail(i, "the norm lacks a unit");
        end(i);
    }

    // Every contribution to the loss of the entry.
    std::set<Part> losses() const {
        std::set<Part> out;
        for (const ir::Routine& maker : p_.routines) {
            const int port = maker.port_of_state(p_.state(StateRole::LossSum));
            if (port < 0 || maker.entry != e_.kind || maker.ports[port].access != Access::Accumulate) continue;
            for (int64_t m = 0; m < p_.microbatches; ++m) {
                for (int64_t chunk = 0; chunk < maker.chunks; ++chunk) out.insert({m, chunk, contributor(maker), 0});
            }
        }
        return out;
    }
    // Loss and number of targets are summed over all ranks when each microbatch is in them.
    void end(int i) {
        if (loss_ != losses()) fail(i, "the loss lacks a microbatch");
        if (static_cast<int64_t>(count_.size()) != p_.microbatches) fail(i, "not every microbatch has been counted");
        if (finished_) fail(i, "ends the step a second time");
        finished_ = true;
    }

    void update(int i, const ir::Routine& r, const ir::Call& c) {
        if (!finished_) fail(i, "updates before the step's norm and loss are known");
        if (!ready(r, c)) fail(i, "updates with gradients that are not complete and reduced");
        if (!updated_.insert({r.unit, c.instance}).second) fail(i, "updates a second time");
    }

    // Each op copies one state's tensor to the same place of that state's copy.
    void snapshot(int i, const ir::Routine& r, const ir::Call& c) {
        for (const ir::Op& op : r.ops) {
            const ir::Tensor &from = r.tensors[op.in[0]], &to = r.tensors[op.out[0]];
            if (!ops::rule(op.kind).copies || from.port < 0 || to.port < 0 || from.dtype != to.dtype ||
                from.placement != to.placement || from.offset_bytes != to.offset_bytes || op.kernel != ir::kDeviceCopy)
                return fail(i, fmt::format("{} is no copy of {}", to.name, from.name));
            const ir::Port &of = r.ports[from.port], &copy = r.ports[to.port];
            if (of.state < 0 || copy.state < 0 || p_.state_of(copy).copy_of != of.state)
                return fail(i, fmt::format("{} holds copies of another state than {}", copy.name, of.name));
            if (p_.place_of(copy) != Place::Host) return fail(i, fmt::format("{} is not in the host's memory", copy.name));
            const int state = c.bindings[from.port].buffer;
            copied_.insert(state);
            if (!tensors_copied_.insert({state, from.offset_bytes}).second) fail(i, fmt::format("copies {} twice", from.name));
        }
    }

    // Each unit instance meets in one fragment, and its mirrors take what it has then.
    void all_meet_once() {
        std::map<UnitInstance, int> met;
        for (const ir::Entry& e : p_.entries) {
            for (const ir::Call& c : e.calls) {
                const ir::Routine& r = p_.routines[static_cast<size_t>(c.routine)];
                if (r.kind == RoutineKind::Outer) ++met[{r.unit, c.instance}];
            }
        }
        for (const ir::Unit& u : p_.units) {
            for (int64_t i : u.mirror ? std::vector<int64_t>{} : p_.instances(u)) {
                if (wrong_.empty() && met[{u.name, i}] != 1)
                    wrong_ = fmt::format("{}[{}] meets {} times", u.name, i, met[{u.name, i}]);
                if (wrong_.empty() && updated_.contains({u.name, i}) && !exchanged(u.name, true))
                    wrong_ = u.name + " is not given to its mirror";
            }
        }
    }

    // What updates change is what snapshots copy, and only updates, which wait for the copies, change it.
    void complete_snapshot() {
        for (const ir::Entry& e : p_.entries) {
            for (const ir::Call& c : e.calls) {
                const ir::Routine& r = p_.routines[c.routine];
                for (size_t k = 0; k < c.bindings.size(); ++k) {
                    const int buffer = c.bindings[k].buffer;
                    if (r.ports[k].access == Access::Read || r.kind == RoutineKind::Snapshot || !wrong_.empty()) continue;
                    const bool state = ir::updates_weights(r.kind) && r.ports[k].kind == PortKind::State &&
                                       r.ports[k].access == Access::Update;  // what is only written follows from another state
                    if (!state && copied_.contains(buffer))
                        wrong_ = fmt::format("{} changes {} without waiting for its copy", r.name, p_.buffers[buffer].name);
                    for (ir::TensorId t : r.port_tensors(static_cast<int>(k))) {
                        if (state && !tensors_copied_.contains({buffer, r.tensors[t].offset_bytes}))
                            wrong_ = fmt::format("the snapshot lacks {} of {}", r.tensors[t].name, p_.buffers[buffer].name);
                    }
                }
            }
        }
    }

    const ir::Program& p_;
    const ir::Entry& e_;
    std::vector<int> contributors_;                     // by routine
    std::vector<std::vector<const ir::Unit*>> units_;   // by routine and port: what it binds of a unit, or nullptr
    std::set<int> copied_;                              // buffers of states
    std::set<std::pair<int, int64_t>> tensors_copied_;  // state's buffer, offset
    std::map<int, Gradient> gradients_;                 // by buffer
    std::map<std::pair<const ir::Unit*, int64_t>, Parts> contributed_;
    mutable std::map<UnitInstance, Parts> expected_;  // as far as it was asked for
    std::map<int, std::set<UnitInstance>> shard_of_;  // whose gradients a shard's buffer holds
    std::map<int, UnitInstance> owner_;
    std::set<Part> loss_;
    std::set<int64_t> count_;
    using StateInstance = std::pair<ir::StateId, int64_t>;
    std::map<StateInstance, int> buffer_of_state_;
    std::map<int, StateInstance> state_of_buffer_;
    std::map<int, Data> data_owner_;     // by buffer
    std::map<int, EntryKind> input_of_;  // buffer -> the entry that it is an input of
    std::map<Data, int> buffer_of_;
    std::set<UnitInstance> norm_, counted_, updated_;
    std::set<int> exchanged_;  // routines: transfers of shared parameters
    bool finished_ = false, inverse_read_ = false;
    std::string wrong_;
};

}  // namespace

std::string wrong_accounting(const ir::Program& program, const ir::Entry& entry) { return Accounting(program, entry).run(); }

}  // namespace lockstep::check
