#include "passes/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <set>
#include <string_view>

#include "base/error.h"
#include "passes/bindings.h"

namespace lockstep::passes {
namespace {

using ir::Call;
using ir::PortKind;
using ir::Routine;
using ir::RoutineKind;
using schedules::Work;

class Scheduler {
public:
    Scheduler(ir::Program& program, const ScheduleOptions& options)
        : p_(program),
          options_(options),
          bindings_(program, options.names_buffers),
          stages_(program.stages),
          units_(in_order_of_names(program.units)) {
        if (stages_.empty()) stages_.push_back({0, p_.block_instances()});
        for (const Routine& r : p_.routines) {
            params_of_.push_back(units(r, PortKind::Params));
            gradients_of_.push_back(units(r, PortKind::Gradients));
        }
        for (const ir::Unit* u : units_) {
            of_unit_.emplace_back();
            for (const Routine& r : p_.routines) {
                const Routine*& first = of_unit_.back()[static_cast<size_t>(r.kind)];
                if (r.unit == u->name && r.entry == ir::EntryKind::Train && !first) first = &r;
            }
        }
        for (const Routine& r : p_.routines) fetched_for_.push_back(units_that_fill(r));
    }

    void run() {
        for (const ir::EntryKind entry : entries()) {
            begin(entry);
            counting();
            row_of_steps();
            if (is_train()) finish();
            else totals();
            p_.entries.push_back(std::move(entry_));
        }
        snapshot();
        for (int64_t fragment = 0; fragment < options_.fragments; ++fragment) outer(fragment);
    }

private:
    using UnitId = size_t;  // in the order of the units' names, which is that of calls for several units at once

    // Those that have forwards, in their order.
    std::vector<ir::EntryKind> entries() const {
        std::vector<ir::EntryKind> out;
        for (const Routine& r : p_.routines) {
            if (r.kind == RoutineKind::Forward && std::find(out.begin(), out.end(), r.entry) == out.end()) out.push_back(r.entry);
        }
        return out;
    }
    bool is_train() const { return entry_.kind == ir::EntryKind::Train; }
    void begin(ir::EntryKind entry) {
        entry_ = {entry, {}};
        bindings_.begin_entry(entry);
        of_block_.clear();
        fetched_.clear();
        for (const ir::Block& b : p_.blocks) of_block_[b.name];
        for (const Routine& r : p_.routines) {
            if (!r.block.empty() && r.entry == entry) of_block_[r.block].push_back(&r);
        }
    }

    // For an instance of its block or unit.
    void call(const Routine& r, int64_t instance, int64_t microbatch, int64_t chunk = 0) {
        if (r.ops.empty() && r.kind != RoutineKind::Free) return;
        Call& c = entry_.calls.emplace_back();
        c.routine = index_of(r);
        c.instance = instance;
        c.microbatch = microbatch;
        c.chunk = chunk;
        c.bindings = bindings_.bind(r, instance, microbatch, chunk);
    }
    int index_of(const Routine& r) const { return static_cast<int>(&r - p_.routines.data()); }

    void counting() {
        for (const Routine& r : p_.routines) {
            if (r.kind != RoutineKind::Begin || r.entry != entry_.kind) continue;
            const bool per_microbatch =
                std::any_of(r.ports.begin(), r.ports.end(), [](const ir::Port& p) { return p.kind == PortKind::Input; });
            for (int64_t m = 0; m < (per_microbatch ? p_.microbatches : 1); ++m) call(r, 0, m);
        }
    }

    static std::vector<const ir::Unit*> in_order_of_names(const std::vector<ir::Unit>& units) {
        std::vector<const ir::Unit*> out;
        for (const ir::Unit& u : units) out.push_back(&u);
        std::sort(out.begin(), out.end(), [](const ir::Unit* a, const ir::Unit* b) { return a->name < b->name; });
        return out;
    }
    const ir::Unit& unit(UnitId id) const { return *units_[id]; }
    const Routine& of_unit(RoutineKind kind, UnitId id) const { return *of_unit_[id][static_cast<size_t>(kind)]; }
    bool has(RoutineKind kind, UnitId id) const { return of_unit_[id][static_cast<size_t>(kind)] != nullptr; }

    // The units whose parameters, or gradients, a routine binds.
    std::vector<UnitId> units(const Routine& r, PortKind kind) const {
        std::vector<UnitId> out;
        for (const ir::Port& p : r.ports) {
            const auto is_its = [&](const ir::Unit* u) { return u->name == p.unit; };
            if (p.kind == kind)
                out.push_back(static_cast<UnitId>(std::find_if(units_.begin(), units_.end(), is_its) - units_.begin()));
        }
        return out;
    }

    // The units whose fetch writes a state that the routine reads, besides those of its parameters.
    std::vector<UnitId> units_that_fill(const Routine& r) const {
        std::vector<UnitId> out;
        for (UnitId u = 0; !r.block.empty() && u < units_.size(); ++u) {
            if (!has(RoutineKind::Fetch, u)) continue;
            const std::vector<ir::Port>& written = of_unit(RoutineKind::Fetch, u).ports;
            if (std::any_of(written.begin(), written.end(),
                            [&](const ir::Port& p) { return p.access != ir::Access::Read && r.port_of_state(p.state) >= 0; }))
                out.push_back(u);
        }
        return out;
    }

    // A routine that a step of the row runs, for a stage.
    struct Run {
        const Routine* routine;
        int64_t instance, microbatch, stage;
        size_t step;          // of the row
        bool is_last = true;  // of the parts of its routine
    };
    using UnitInstance = std::pair<UnitId, int64_t>;
    static int64_t instance_of(const ir::Unit& u, const Run& run) { return u.is_of(*run.routine) ? run.instance : 0; }

    static bool sends(const Routine& r) {
        return r.kind == RoutineKind::Transfer && ir::collective_of(r.ops.at(0)) == mesh::Collective::Send;
    }

    // At most one send over a cut and in a direction is in flight: the one before is waited for first, so its bytes are free.
    // Sends to one rank are waited for in the order in which they were sent.
    void send(const Run& run) {
        std::deque<Run>& before = sent_[run.routine->ops[0].integer("peer")];
        const auto over_same_cut = [&](const Run& s) { return s.routine == run.routine && s.instance == run.instance; };
        while (std::any_of(before.begin(), before.end(), over_same_cut)) wait_for_first(before);
        call(*run.routine, run.instance, run.microbatch);
        before.push_back(run);
    }
    void wait_for_first(std::deque<Run>& sent) {
        call(wait_of(*sent.front().routine), sent.front().instance, sent.front().microbatch);
        sent.pop_front();
    }

    const Routine& wait_of(const Routine& send) const {
        for (const Routine* r : of_block_.at(send.block)) {
            if (r->kind == RoutineKind::Transfer && r->ports[0].role == send.ports[0].role &&
                ir::collective_of(r->ops[0]) == mesh::Collective::Wait &&
                r->ops[0].integer("peer") == send.ops[0].integer("peer"))
                return *r;
        }
        throw InternalError("schedule: nothing waits for " + send.name);
    }

    void compute(const Run& run) {
        const Routine& r = *run.routine;
        if (sends(r)) return send(run);
        const auto fetch = [&](UnitId u) {
            const UnitInstance place = {u, instance_of(unit(u), run)};
            if (has(RoutineKind::Fetch, u) && fetched_.insert(place).second)
                call(of_unit(RoutineKind::Fetch, u), place.second, run.microbatch);
        };
        for (const UnitId u : fetched_for_[static_cast<size_t>(index_of(r))]) fetch(u);
        for (const UnitId u : params_of_[static_cast<size_t>(index_of(r))]) {
            if (unit(u).is_fetched() || is_float8(unit(u).compute)) fetch(u);
            const UnitInstance place = {u, instance_of(unit(u), run)};
            if (!unit(u).is_gathered()) continue;
            if (!gathered_.contains(place) && !still_gathered(unit(u), place.second))
                call(of_unit(RoutineKind::Gather, u), place.second, run.microbatch);
            gathered_[place] = run.stage;
        }
        for (int64_t chunk = 0; chunk < r.chunks; ++chunk) call(r, run.instance, run.microbatch, chunk);
        if (options_.resident_stages == 0 && run.is_last) free_gathered({}, run.microbatch);
    }

    // Ends the gathered copies of units whose stage is not one of `kept`.
    void free_gathered(const std::set<int64_t>& kept, int64_t microbatch) {
        for (auto it = gathered_.begin(); it != gathered_.end();) {
            const auto& [place, stage] = *it;
            if (kept.contains(stage)) {
                ++it;
                continue;
            }
            call(of_unit(RoutineKind::Free, place.first), place.second, microbatch);
            it = gathered_.erase(it);
        }
    }

    static std::vector<int64_t> stages_of(const std::vector<schedules::Step>& row) {
        std::vector<int64_t> out;
        for (const schedules::Step& s : row) out.push_back(s.kind == schedules::StepKind::Run ? s.action.stage : -1);
        return out;
    }

    // A unit that was freed by the call just before is kept instead.
    bool still_gathered(const ir::Unit& u, int64_t instance) {
        for (size_t k = entry_.calls.size(); k-- > 0 && p_.routines[entry_.calls[k].routine].kind == RoutineKind::Free;) {
            if (p_.routines[entry_.calls[k].routine].unit != u.name || entry_.calls[k].instance != instance) continue;
            entry_.calls.erase(entry_.calls.begin() + static_cast<long>(k));
            return true;
        }
        return false;
    }

    std::vector<schedules::Step> row() const {
        if (const auto it = options_.rows.find(entry_.kind); it != options_.rows.end()) return it->second;
        std::vector<schedules::Step> out;
        for (int64_t m = 0; m < p_.microbatches; ++m) {
            out.push_back({schedules::StepKind::Run, {schedules::Work::Forward, 0, m}, -1});
            if (is_train()) out.push_back({schedules::StepKind::Run, {schedules::Work::Backward, 0, m}, -1});
        }
        return out;
    }

    const std::vector<ir::BlockInstance>& blocks_of(int64_t stage) const {
        const auto at = std::find_if(stages_.begin(), stages_.end(), [&](const ir::Stage& s) { return s.index == stage; });
        if (at == stages_.end())
            throw InternalError(fmt::format("schedule: pipeline rank {} has no stage {}", p_.pipeline_rank, stage));
        return at->blocks;
    }

    // The routines of one step of the row: forwards (and what fuse_loss cut from them) block by block, backwards the other way.
    std::vector<Run> runs_of(const schedules::Step& step, size_t index) const {
        const schedules::Action& a = step.action;
        if (step.kind != schedules::StepKind::Run) return {transfer(step, index)};
        std::vector<ir::BlockInstance> blocks = blocks_of(a.stage);
        if (a.work != Work::Forward) std::reverse(blocks.begin(), blocks.end());
        std::vector<Run> out;
        for (const ir::BlockInstance& b : blocks) {
            for (const Routine* r : of_block_.at(b.block)) {
                if (!is_part_of(a.work, r->kind) || !r->serves(b.instance)) continue;
                if (r->part > 0) out.back().is_last = false;
                out.push_back({r, b.instance, a.microbatch, a.stage, index});
            }
        }
        return out;
    }
    static bool is_part_of(Work work, RoutineKind kind) {
        switch (work) {
            case Work::Forward: return ir::is_forward(kind);
            case Work::Backward: return kind == RoutineKind::Backward;
            case Work::BackwardInput: return kind == RoutineKind::BackwardInput;
            case Work::BackwardWeight: return kind == RoutineKind::BackwardWeight;
            case Work::Idle: break;
        }
        return false;
    }

    // What is transferred is at a cut: y, or d.y, of the last block of the stage before it.
    Run transfer(const schedules::Step& step, size_t index) const {
        const bool forward = step.action.work == Work::Forward, sends = step.kind == schedules::StepKind::Send;
        const int64_t made_by = step.action.stage, ours = sends ? made_by : forward ? made_by + 1 : made_by - 1;
        const ir::BlockInstance& at = forward == sends ? blocks_of(ours).back() : blocks_of(ours).front();
        const Bindings::Maker from =
            forward == sends ? Bindings::Maker{at.block, at.instance} : bindings_.before(at.block, at.instance);
        for (const Routine* r : of_block_.at(from.block)) {
            if (r->kind != RoutineKind::Transfer || !r->serves(from.instance)) continue;
            const ir::Op& op = r->ops.at(0);
            const bool in_direction = ir::collective_of(op) == (sends ? mesh::Collective::Send : mesh::Collective::Recv);
            if (r->ports[0].role == (forward ? ir::PortRole::Y : ir::PortRole::DY) && in_direction &&
                op.integer("peer") == step.peer)
                return {r, from.instance, step.action.microbatch, ours, index};
        }
        throw InternalError(fmt::format("schedule: nothing {} {}[{}] to or from pipeline rank {}", sends ? "sends" : "receives",
                                        from.block, from.instance, step.peer));
    }

    // For every unit the runs that add to its gradients, in order.
    std::map<UnitInstance, std::vector<size_t>> runs_that_add(const std::vector<Run>& runs) const {
        std::map<UnitInstance, std::vector<size_t>> out;
        for (size_t k = 0; k < runs.size(); ++k) {
            for (const UnitId u : gradients_of_[static_cast<size_t>(index_of(*runs[k].routine))]) {
                std::vector<size_t>& all = out[{u, instance_of(unit(u), runs[k])}];
                if (all.empty() || all.back() != k) all.push_back(k);
            }
        }
        return out;
    }

    // The runs after which a unit's gradient is reduced: the last run of each microbatch. If microbatches interleave, as they
    // do for the head, whose loss runs with the forwards, no microbatch's part is complete by itself:
    // then once, after the last run.
    std::vector<size_t> ends_of_windows(const std::vector<Run>& runs, const std::vector<size_t>& adding) const {
        if (options_.reduce == ReduceGradients::OnceAStep) return {adding.back()};
        std::vector<size_t> ends;
        std::set<int64_t> ended;
        for (size_t i = 0; i < adding.size(); ++i) {
            const int64_t m = runs[adding[i]].microbatch;
            if (ended.contains(m)) return {adding.back()};
            if (i + 1 < adding.size() && runs[adding[i + 1]].microbatch == m) continue;
            ends.push_back(adding[i]);
            ended.insert(m);
        }
        return ends;
    }

    void row_of_steps() {
        std::vector<Run> runs;
        const std::vector<schedules::Step> row = this->row();
        for (size_t i = 0; i < row.size(); ++i) {
            const std::vector<Run> some = runs_of(row[i], i);
            runs.insert(runs.end(), some.begin(), some.end());
        }
        const std::map<UnitInstance, std::vector<size_t>> adding = runs_that_add(runs);
        std::vector<std::vector<UnitInstance>> reduced_behind(runs.size());
        for (const auto& [place, all] : adding) {
            for (size_t k : ends_of_windows(runs, all)) reduced_behind[k].push_back(place);
        }
        entry_.calls.reserve(entry_.calls.size() + runs.size() + runs.size() / 8);
        const ResidentStages residents(stages_of(row), options_.resident_stages);
        for (size_t k = 0; k < runs.size(); ++k) {
            const bool begins_step = k == 0 || runs[k].step != runs[k - 1].step;
            if (begins_step && options_.resident_stages > 0) free_gathered(residents.from(runs[k].step), runs[k].microbatch);
            compute(runs[k]);
            for (const UnitInstance& place : reduced_behind[k]) {
                if (!unit(place.first).gradients.empty())
                    call(of_unit(RoutineKind::ReduceMicro, place.first), place.second, runs[k].microbatch);
                if (adding.at(place).back() == k)
                    call(of_unit(RoutineKind::ReduceStep, place.first), place.second, runs[k].microbatch);
            }
        }
        free_gathered({}, p_.microbatches - 1);
        for (auto& [peer, sent] : sent_) {
            while (!sent.empty()) wait_for_first(sent);
        }
    }

    // The copies of all states, an entry of its own: it runs between steps, or during one until its first update.
    void snapshot() {
        begin(ir::EntryKind::Snapshot);
        for (const ir::Unit& u : p_.units) {
            const Routine* r = p_.routine(RoutineKind::Snapshot, u.name, ir::EntryKind::Snapshot);
            for (int64_t i : p_.instances(u)) {
                if (r) call(*r, i, 0);
            }
        }
        if (!entry_.calls.empty()) p_.entries.push_back(std::move(entry_));
    }

    // The meeting of islands, an entry for each part of the model.
    void outer(int64_t fragment) {
        begin(ir::EntryKind::Outer);
        entry_.fragment = fragment;
        for (const ir::Unit& u : p_.units) {
            const Routine* r = p_.routine(RoutineKind::Outer, u.name, ir::EntryKind::Outer);
            for (int64_t i : p_.instances(u)) {
                if (r && is_of_fragment(u, i, fragment)) call(*r, i, 0);
            }
        }
        exchange_with_mirrors(true, 0, [&](const ir::Unit& u) { return is_of_fragment(u, 0, fragment); });
        p_.entries.push_back(std::move(entry_));
    }
    // Fragments are runs of the model's blocks, of equal numbers.
    bool is_of_fragment(const ir::Unit& u, int64_t instance, int64_t fragment) const {
        int64_t before = 0, all = 0;
        for (const ir::Block& b : p_.blocks) {
            if (b.name == u.block) before = all + instance - b.first;
            all += b.count;
        }
        return before * options_.fragments / all == fragment;
    }

    void totals() {
        for (const Routine& r : p_.routines) {
            if (r.entry == entry_.kind && r.kind == RoutineKind::Stats) call(r, 0, p_.microbatches - 1);
        }
    }

    void finish() {
        const int64_t m = p_.microbatches - 1;
        const auto of_units = [&](RoutineKind kind) {
            for (const ir::Unit& u : p_.units) {
                for (int64_t i : u.mirror ? std::vector<int64_t>{} : p_.instances(u)) call(*p_.routine(kind, u.name), i, m);
            }
        };
        exchange_with_mirrors(false, m);
        of_units(RoutineKind::Stats);
        call(*p_.routine(RoutineKind::Stats, ""), 0, m);
        of_units(RoutineKind::Update);
        exchange_with_mirrors(true, m);
    }

    // Gradients, or weights, of parameters that are on several pipeline ranks; of some units.
    template <class Of>
    void exchange_with_mirrors(bool weights, int64_t m, const Of& of) {
        for (const Routine& r : p_.routines) {
            if (ir::exchanges_states(r) && r.entry == entry_.kind && p_.has_role(r.ports[0], ir::StateRole::Weights) == weights &&
                of(*p_.unit(r.unit)))
                call(r, 0, m);
        }
    }
    void exchange_with_mirrors(bool weights, int64_t m) {
        exchange_with_mirrors(weights, m, [](const ir::Unit&) { return true; });
    }

    ir::Program& p_;
    const ScheduleOptions& options_;
    Bindings bindings_;
    std::vector<ir::Stage> stages_;
    const std::vector<const ir::Unit*> units_;                            // by UnitId
    std::vector<std::array<const Routine*, ir::kRoutineKinds>> of_unit_;  // the first of each kind
    std::vector<std::vector<UnitId>> params_of_, gradients_of_;           // by routine: units that it binds
    std::vector<std::vector<UnitId>> fetched_for_;                        // by routine: units that fill a state for it
    std::map<std::string_view, std::vector<const Routine*>> of_block_;    // of this entry
    ir::Entry entry_;
    std::map<int64_t, std::deque<Run>> sent_;   // by peer: what is not awaited yet
    std::map<UnitInstance, int64_t> gathered_;  // units that stay gathered: the stage that used them last
    std::set<UnitInstance> fetched_;            // in this entry
};

}  // namespace

ResidentStages::ResidentStages(const std::vector<int64_t>& stages, int64_t resident) : resident_(resident) {
    for (size_t i = 0; i < stages.size(); ++i) {
        if (stages[i] >= 0) steps_of_[stages[i]].push_back(i);
    }
}

std::set<int64_t> ResidentStages::from(size_t step) const {
    std::vector<std::pair<size_t, int64_t>> next;  // step, stage
    for (const auto& [stage, steps] : steps_of_) {
        const auto at = std::lower_bound(steps.begin(), steps.end(), step);
        if (at != steps.end()) next.emplace_back(*at, stage);
    }
    std::sort(next.begin(), next.end());
    std::set<int64_t> out;
    for (const auto& [at, stage] : next) {
        if (static_cast<int64_t>(out.size()) < resident_) out.insert(stage);
    }
    return out;
}

ir::Program schedule(ir::Program program, const ScheduleOptions& options) {
    Scheduler(program, options).run();
    return program;
}

}  // namespace lockstep::passes
