#include "runtime/trainer.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <span>
#include <utility>

#include "runtime/meet.h"
#include "runtime/ranks_options.h"
#include "runtime/share_timelines.h"

namespace lockstep::runtime {
namespace {

using Clock = std::chrono::steady_clock;
RanksOptions with(RanksOptions options, Backend backend, const std::optional<comm::islands::Invitation>& islands) {
    if (backend.machine) options.backend = std::move(backend);
    options.islands = islands;
    return options;
}

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

}  // namespace

BatchShape batch_shape(const compile::Layout& layout) {
    return {layout.local_batch * layout.data_ranks, layout.island_batch(), layout.seq_len, 0, layout.job};
}

Trainer::Trainer(const compile::Config& config, const compile::Compiled& compiled, const data::Source& source,
                 comm::ProcessGroup* group, Backend backend, const std::optional<comm::islands::Invitation>& islands)
    : compiled_(compiled),
      source_(source),
      lr_(config),
      rank_threads_(rank_threads_of(config, compiled.layout.ranks, group)),
      shape_(batch_shape(compiled.layout)),
      ranks_(
          std::make_unique<Ranks>(compiled.programs, with(ranks_options(config, compiled, group), std::move(backend), islands))) {
    shape_.seed = static_cast<uint64_t>(config.debug.seed);
    for (const auto& e : ranks_->here()) loaders_.emplace_back(e->program(), ir::EntryKind::Train, e->rank(), shape_);
    if (compiled.programs[0].entry(ir::EntryKind::Eval)) evaluator_.emplace(*ranks_, shape_);
    ranks_->parallel([this](Executor& e) { fill_initial_weights(e, shape_.seed); });
}

void Trainer::fill_weights(const ValuesOf& values_of) {
    ranks_->parallel([&](Executor& e) { runtime::fill_weights(e, values_of); });
}

GlobalTensors Trainer::state(const WhichStates& which) {
    GlobalTensors tensors;
    allocate_tensors(compiled_.programs, tensors);
    ranks_->parallel([&](Executor& e) { export_state(e, which, tensors); });
    if (ranks_->group().is_alone()) return tensors;
    for (auto& [name, whole] : tensors) {  // every element is on one process, and is zero on the others
        const auto bytes = std::as_bytes(std::span(whole));
        const std::vector<std::string> parts =
            ranks_->group().exchange({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
        std::fill(whole.begin(), whole.end(), 0.0);
        for (const std::string& part : parts) {
            for (size_t i = 0; i < whole.size(); ++i) {
                double value = 0;
                std::memcpy(&value, part.data() + i * sizeof value, sizeof value);
                whole[i] += value;
            }
        }
    }
    return tensors;
}

std::vector<ir::Timeline> Trainer::new_timelines() const {
    std::vector<ir::Timeline> all(static_cast<size_t>(ranks_->count()));
    for (size_t r = 0; r < all.size(); ++r) {  // each by itself: a copy has no room
        const ir::Program& p = compiled_.of_rank(static_cast<int64_t>(r));
        all[r] = ir::room_for(p, *p.entry(ir::EntryKind::Train));
    }
    return all;
}

// After the step that is under way? Fragments of the model meet in turn, at even distances; the last of them every sync_steps
// steps.
bool Trainer::meets(int64_t fragment) const {
    const int64_t sync_steps = compiled_.layout.sync_steps;
    const int64_t turn = (fragment + 1) * sync_steps / compiled_.layout.partition.outer->fragments % sync_steps;
    return (progress_.steps + 1) % sync_steps == turn;
}

void Trainer::meet(Executor& e) {
    const std::optional<passes::OuterOptions>& outer = compiled_.layout.partition.outer;
    if (!outer) return;
    if (comm::islands::Member* member = ranks_->member(ranks_->place(e.rank()))) member->begin(progress_.steps + 1);
    for (int64_t f = 0; f < outer->fragments; ++f) {
        if (meets(f)) e.run(ir::EntryKind::Outer, f);
    }
}

// As the service says, which says the same to all ranks.
bool Trainer::share_state(FunctionRef<comm::islands::Turn(comm::islands::Member&, Executor&)> turn_of) {
    using What = comm::islands::Turn::What;
    std::vector<Progress> progress(ranks_->here().size(), progress_);
    std::atomic<bool> taken = false;
    ranks_->parallel([&](Executor& e) {
        comm::islands::Member& member = *ranks_->member(ranks_->place(e.rank()));
        Progress& p = progress[ranks_->place(e.rank())];
        std::array<int64_t, 3> numbers = {p.steps, p.samples_seen, p.tokens_seen};
        const What what = turn_of(member, e).what;
        if (what == What::Give) give_state(member, e, numbers);
        if (what != What::Take) return;
        take_state(member, e, numbers);
        p = {numbers[0], numbers[1], numbers[2]};
        taken = true;
    });
    progress_ = progress.front();
    return taken;
}

bool Trainer::join_islands() {
    if (!ranks_->member(0)) return false;
    const std::string model = meeting_text(compiled_.programs);
    return share_state([&](comm::islands::Member& m, Executor& e) { return m.arrive(progress_.steps, model, anchor_text(e)); });
}

void Trainer::admit_islands() {
    if (ranks_->member(0)) share_state([&](comm::islands::Member& m, Executor&) { return m.after(progress_.steps); });
}

StepResult Trainer::step() { return step(nullptr, false); }

// Where islands meet after a step, the next one begins with what they agree on.
StepResult Trainer::step_and_begin_next() {
    return step(nullptr, !ranks_->first().device().is_host() && !compiled_.layout.partition.outer);
}

StepResult Trainer::step(std::vector<ir::Timeline>& timelines) { return step(&timelines, false); }

// The step behind those that have ended, or behind the one that was begun; `to_its_end`: all of it.
Trainer::Begun Trainer::begin(std::vector<ir::Timeline>* timelines, bool to_its_end) {
    const int64_t before = progress_.steps + (begun_ ? 1 : 0),
                  samples_seen = progress_.samples_seen + (begun_ ? samples_per_step() : 0);
    Begun begun;
    begun.start = Clock::now();
    StepResult& result = begun.result;
    result.step = before + 1, result.lr = lr_.at(before);
    const int64_t fragments = compiled_.layout.partition.outer ? compiled_.layout.partition.outer->fragments : 0;
    for (int64_t f = 0; f < fragments; ++f) begun.meets |= meets(f);
    ranks_->parallel([&](Executor& e) {
        ir::Timeline* timeline = timelines ? &(*timelines)[static_cast<size_t>(e.rank())] : nullptr;
        e.record(timeline, begun.start);
        const Clock::time_point begin = Clock::now();
        loaders_[ranks_->place(e.rank())].load(e, samples_seen, [&](int64_t i, auto ids, auto targets, auto pos, auto doc) {
            source_.sample(i, ids, targets, pos, doc);
        });
        e.set_value(e.program().state(ir::StateRole::LearningRate), result.lr);
        note_before(e, result.step);
        if (ranks_->place(e.rank()) == 0) result.data_time_s = seconds_since(begin);
        if (timeline) {
            timeline->data_begin_s = std::chrono::duration<double>(begin - begun.start).count();
            timeline->data_end_s = seconds_since(begun.start);
        }
        e.start(ir::EntryKind::Train);
        note_after(e, result.step);
        if (to_its_end) end(e);
    });
    begun.has_ended = to_its_end;
    return begun;
}

// On the thread of its rank.
void Trainer::end(Executor& e) {
    e.finish();
    e.record(nullptr, {});
    meet(e);
}

StepResult Trainer::step(std::vector<ir::Timeline>* timelines, bool begins_next) {
    const bool shared = timelines && !ranks_->group().is_alone();
    if (shared) ranks_->group().exchange("");  // all begin at about the same time: that is zero on every process
    if (!begun_) begun_ = begin(timelines, !begins_next);
    std::optional<Begun> next;
    if (begins_next) next = begin(nullptr, false);
    else if (!begun_->has_ended) ranks_->parallel([&](Executor& e) { end(e); });
    StepResult result = begun_->result;
    read_notes(*ranks_, compiled_.layout.mesh, result);
    const bool has_met = begun_->meets;
    const Clock::time_point start = std::max(begun_->start, ended_);
    begun_ = std::move(next);
    ++progress_.steps;
    progress_.samples_seen += samples_per_step();
    progress_.tokens_seen += tokens_per_step();
    if (has_met) admit_islands();
    ended_ = Clock::now();
    result.step_time_s = std::chrono::duration<double>(ended_ - start).count();
    if (shared) share_timelines(*ranks_, *timelines);
    if (timelines) {
        for (ir::Timeline& t : *timelines) t.end_s = result.step_time_s;
    }
    return result;
}

}  // namespace lockstep::runtime
