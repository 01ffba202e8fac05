#include "runtime/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "kernels/step_control.h"

namespace lockstep::runtime {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

}  // namespace

RanksOptions ranks_options(const compile::Recipe& r, const compile::Layout& layout) {
    const compile::Placement placement = compile::placement_of(r, layout.ranks, static_cast<int>(usable_cpus().size()));
    RanksOptions o;
    o.threads_per_rank = placement.threads_per_rank;
    o.comm_thread = placement.comm_thread;
    o.debug_fill = r.flag("runtime.debug_fill");
    o.links.link = compile::local_link(r);
    return o;
}

BatchShape batch_shape(const compile::Layout& layout) {
    return {layout.local_batch * layout.data_ranks, layout.global_batch, layout.seq_len};
}

Trainer::Trainer(const compile::Recipe& recipe, const compile::Compiled& compiled, const data::Source& source)
    : compiled_(compiled),
      source_(source),
      lr_(recipe),
      placement_(compile::placement_of(recipe, compiled.layout.ranks, static_cast<int>(usable_cpus().size()))),
      shape_(batch_shape(compiled.layout)),
      ranks_(std::make_unique<Ranks>(compiled.programs, ranks_options(recipe, compiled.layout))) {
    shape_.seed = static_cast<uint64_t>(recipe.integer("debug.seed"));
    for (int r = 0; r < ranks_->count(); ++r) loaders_.emplace_back(compiled.of_rank(r), "train", r, shape_);
    if (compiled.programs[0].entry("eval")) evaluator_.emplace(*ranks_, shape_);
    ranks_->parallel([this](Executor& e) { fill_initial_weights(e, shape_.seed); });
}

void Trainer::fill_weights(const ValueOf& value) {
    ranks_->parallel([&](Executor& e) { runtime::fill_weights(e, value); });
}

GlobalTensors Trainer::state(StateKind kind) {
    GlobalTensors tensors;
    allocate_tensors(compiled_.programs, tensors);
    ranks_->parallel([&](Executor& e) { export_state(e, kind, tensors); });
    return tensors;
}

std::vector<ir::Timeline> Trainer::new_timelines() const {
    std::vector<ir::Timeline> all(static_cast<size_t>(ranks_->count()));
    for (size_t r = 0; r < all.size(); ++r) {  // each by itself: a copy has no room
        const ir::Program& p = compiled_.of_rank(static_cast<int64_t>(r));
        all[r] = ir::room_for(p, *p.entry("train"));
    }
    return all;
}

StepResult Trainer::step() { return step(nullptr); }

StepResult Trainer::step(std::vector<ir::Timeline>& timelines) { return step(&timelines); }

StepResult Trainer::step(std::vector<ir::Timeline>* timelines) {
    StepResult result;
    result.lr = lr_.at(progress_.steps);
    const Clock::time_point start = Clock::now();
    ranks_->parallel([&](Executor& e) {
        ir::Timeline* timeline = timelines ? &(*timelines)[static_cast<size_t>(e.rank())] : nullptr;
        e.record(timeline, start);
        const Clock::time_point begin = Clock::now();
        loaders_[e.rank()].load(e, progress_.samples_seen, [&](int64_t i, auto ids, auto targets, auto pos, auto doc) {
            source_.sample(i, ids, targets, pos, doc);
        });
        *e.scalar("lr") = result.lr;
        if (e.rank() == 0) result.data_time_s = seconds_since(begin);
        if (timeline) {
            timeline->data_begin_s = std::chrono::duration<double>(begin - start).count();
            timeline->data_end_s = seconds_since(start);
        }
        e.run("train");
        e.record(nullptr, start);
    });
    const auto control = kernels::StepControl::read(ranks_->executor(0).scalar("control"));
    result.step = ++progress_.steps;
    progress_.samples_seen += shape_.global_batch;
    progress_.tokens_seen += tokens_per_step();
    result.loss = control.loss;
    result.grad_norm = control.grad_norm;
    result.committed = control.commit;
    result.step_time_s = seconds_since(start);
    if (timelines) {
        for (ir::Timeline& t : *timelines) t.end_s = result.step_time_s;
    }
    return result;
}

}  // namespace lockstep::runtime
