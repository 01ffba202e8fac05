#include "runtime/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/processors.h"
#include "device/late.h"
#include "kernels/step_control.h"
#include "runtime/meet.h"

namespace lockstep::runtime {
namespace {

using Clock = std::chrono::steady_clock;
RanksOptions with(RanksOptions options, std::shared_ptr<device::Machine> machine,
                  const std::optional<comm::islands::Invitation>& islands) {
    if (machine) options.machine = std::move(machine);
    options.islands = islands;
    return options;
}

double loss_scale_of(Executor& e) {
    const ir::StateId id = e.program().state(ir::StateRole::LossScale);
    return id < 0 ? 0.0 : e.value(id);
}

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

}  // namespace

compile::RankThreads rank_threads_of(const compile::Config& config, int64_t ranks, const comm::ProcessGroup* group) {
    return group ? compile::rank_threads_of(config, group->ranks_on_a_host(ranks), group->cores())
                 : compile::rank_threads_of(config, ranks, static_cast<int>(usable_cpus().size()));
}

RanksOptions ranks_options(const compile::Config& config, const compile::Layout& layout, comm::ProcessGroup* group) {
    const compile::RankThreads rank_threads = rank_threads_of(config, layout.ranks, group);
    RanksOptions o;
    o.threads_per_rank = rank_threads.threads_per_rank;
    o.comm_thread = rank_threads.comm_thread;
    o.debug_fill = config.runtime.debug_fill;
    o.flight_entries = config.comm.trace_buf_size;
    o.links.link = compile::local_link(config);
    o.group = group;
    o.island = layout.job, o.island_timeout_s = static_cast<double>(config.comm.train_timeout_seconds);
    if (config.debug.device == compile::DeviceKind::Late)
        o.machine = device::late_machine(static_cast<uint64_t>(config.debug.device_seed));
    return o;
}

BatchShape batch_shape(const compile::Layout& layout) {
    return {layout.local_batch * layout.data_ranks, layout.island_batch(), layout.seq_len, 0, layout.job};
}

Trainer::Trainer(const compile::Config& config, const compile::Compiled& compiled, const data::Source& source,
                 comm::ProcessGroup* group, std::shared_ptr<device::Machine> machine,
                 const std::optional<comm::islands::Invitation>& islands)
    : compiled_(compiled),
      source_(source),
      lr_(config),
      rank_threads_(rank_threads_of(config, compiled.layout.ranks, group)),
      shape_(batch_shape(compiled.layout)),
      ranks_(std::make_unique<Ranks>(compiled.programs,
                                     with(ranks_options(config, compiled.layout, group), std::move(machine), islands))) {
    shape_.seed = static_cast<uint64_t>(config.debug.seed);
    for (const auto& e : ranks_->here()) loaders_.emplace_back(e->program(), ir::EntryKind::Train, e->rank(), shape_);
    if (compiled.programs[0].entry(ir::EntryKind::Eval)) evaluator_.emplace(*ranks_, shape_);
    ranks_->parallel([this](Executor& e) { fill_initial_weights(e, shape_.seed); });
}

void Trainer::fill_weights(const ValueOf& value) {
    ranks_->parallel([&](Executor& e) { runtime::fill_weights(e, value); });
}

GlobalTensors Trainer::state(const WhichStates& which) {
    GlobalTensors tensors;
    allocate_tensors(compiled_.programs, tensors);
    ranks_->parallel([&](Executor& e) { export_state(e, which, tensors); });
    if (ranks_->group().is_alone()) return tensors;
    for (auto& [name, whole] : tensors) {  // every element stands on one process, and is zero on the others
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

// Those of other processes' ranks.
void Trainer::share(std::vector<ir::Timeline>& timelines) {
    using Json = nlohmann::json;
    Json own = Json::array();
    for (const auto& e : ranks_->here()) {
        const ir::Timeline& t = timelines[static_cast<size_t>(e->rank())];
        Json threads = Json::array();
        for (const std::vector<ir::TimedOp>& thread : t.threads) {
            Json ops = Json::array();
            for (const ir::TimedOp& op : thread) ops.push_back({op.call, op.op, op.start_s, op.end_s, op.ready_s});
            threads.push_back(std::move(ops));
        }
        own.push_back({{"rank", e->rank()}, {"threads", threads}, {"data", {t.data_begin_s, t.data_end_s}}});
    }
    const std::vector<uint8_t> bytes = Json::to_cbor(own);
    for (const std::string& text : ranks_->group().exchange({bytes.begin(), bytes.end()})) {
        for (const Json& j : Json::from_cbor(text)) {
            ir::Timeline& t = timelines[j.at("rank").get<size_t>()];
            for (size_t k = 0; k < t.threads.size(); ++k) {
                t.threads[k].clear();
                for (const Json& op : j.at("threads")[k]) t.threads[k].push_back({op[0], op[1], op[2], op[3], op[4]});
            }
            t.data_begin_s = j.at("data")[0], t.data_end_s = j.at("data")[1];
        }
    }
}

// By place, where there are islands, which may differ in it; else none: a step allocates nothing.
std::vector<double> Trainer::loss_scales() const {
    std::vector<double> out;
    if (compiled_.layout.mesh.islands() == 1) return out;
    for (const auto& e : ranks_->here()) out.push_back(loss_scale_of(*e));
    return out;
}

// What the step has come to, from the step's control, which the ranks of an island share.
void Trainer::read_control(const std::vector<double>& scales_before, StepResult& result) {
    const auto control_of = [](Executor& e) {
        double values[kernels::StepControl::kValues];
        e.values(e.program().state(ir::StateRole::Control), values);
        return kernels::StepControl::read(values);
    };
    const auto first = control_of(ranks_->first());
    result.loss = first.loss, result.grad_norm = first.grad_norm, result.committed = first.commit;
    result.next_loss_scale = loss_scale_of(ranks_->first());
    const mesh::Mesh& mesh = compiled_.layout.mesh;
    if (mesh.islands() == 1) return;
    using Json = nlohmann::json;
    std::map<int64_t, Json> own;  // by island: loss, norm, whether it counted, and whether all that was wrong is the scale
    for (const auto& e : ranks_->here()) {
        const auto control = control_of(*e);
        const bool overflowed = !control.commit && loss_scale_of(*e) < scales_before[ranks_->place(e->rank())];
        own[mesh.island_of(e->rank())] = {control.loss, control.grad_norm, control.commit, overflowed};
    }
    std::map<int64_t, Json> all;
    const std::vector<uint8_t> bytes = Json::to_cbor(Json(own));
    for (const std::string& text : ranks_->group().exchange({bytes.begin(), bytes.end()})) {
        for (const auto& [island, values] : Json::from_cbor(text).get<std::map<int64_t, Json>>()) all[island] = values;
    }
    result.loss = result.grad_norm = 0, result.committed = true;
    bool overflowed = true;
    for (const auto& [island, values] : all) {
        result.loss += values[0].get<double>() / static_cast<double>(all.size());
        result.grad_norm = std::max(result.grad_norm, values[1].get<double>());
        if (values[2].get<bool>()) continue;
        result.committed = false;
        overflowed = overflowed && values[3].get<bool>();
    }
    if (!result.committed) result.next_loss_scale = overflowed ? result.loss_scale / 2 : result.loss_scale;
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

StepResult Trainer::step() { return step(nullptr); }

StepResult Trainer::step(std::vector<ir::Timeline>& timelines) { return step(&timelines); }

StepResult Trainer::step(std::vector<ir::Timeline>* timelines) {
    StepResult result;
    result.lr = lr_.at(progress_.steps);
    const std::vector<double> scales = loss_scales();
    result.loss_scale = loss_scale_of(ranks_->first());
    const bool shared = timelines && !ranks_->group().is_alone();
    if (shared) ranks_->group().exchange("");  // all begin at about the same time: that is zero on every process
    const Clock::time_point start = Clock::now();
    bool met = false;
    for (int64_t f = 0; compiled_.layout.partition.outer && f < compiled_.layout.partition.outer->fragments; ++f) met |= meets(f);
    ranks_->parallel([&](Executor& e) {
        ir::Timeline* timeline = timelines ? &(*timelines)[static_cast<size_t>(e.rank())] : nullptr;
        e.record(timeline, start);
        const Clock::time_point begin = Clock::now();
        loaders_[ranks_->place(e.rank())].load(
            e, progress_.samples_seen,
            [&](int64_t i, auto ids, auto targets, auto pos, auto doc) { source_.sample(i, ids, targets, pos, doc); });
        e.set_value(e.program().state(ir::StateRole::LearningRate), result.lr);
        if (ranks_->place(e.rank()) == 0) result.data_time_s = seconds_since(begin);
        if (timeline) {
            timeline->data_begin_s = std::chrono::duration<double>(begin - start).count();
            timeline->data_end_s = seconds_since(start);
        }
        e.run(ir::EntryKind::Train);
        e.record(nullptr, start);
        meet(e);
    });
    read_control(scales, result);
    result.step = ++progress_.steps;
    progress_.samples_seen += samples_per_step();
    progress_.tokens_seen += tokens_per_step();
    if (met) admit_islands();
    result.step_time_s = seconds_since(start);
    if (shared) share(*timelines);
    if (timelines) {
        for (ir::Timeline& t : *timelines) t.end_s = result.step_time_s;
    }
    return result;
}

}  // namespace lockstep::runtime
