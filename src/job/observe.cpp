#include "job/observe.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/processors.h"
#include "compile/memory_report.h"
#include "measure/roofs.h"
#include "sim/cluster.h"
#include "telemetry/console.h"
#include "telemetry/trace.h"

namespace lockstep::job {
Observer::Observer(const ObserveArgs& args, runtime::Trainer& trainer, const compile::Compiled& compiled, int64_t steps)
    : args_(args), trainer_(trainer), compiled_(compiled) {
    trace_step_ = args.trace_step > 0 ? args.trace_step : std::min<int64_t>(steps, kWarmUp + 1);
    if (!args.trace.empty()) {
        comm::ProcessGroup& group = trainer.ranks().group();
        group.together([&] {
            if (group.is_first()) telemetry::require_can_be_written(args.trace);
        });
    }
    if (!args.trace.empty() || args.profile) timelines_ = trainer.new_timelines();
    if (args.cluster.empty()) return;
    const ops::CostTable costs = sim::read_cluster(args.cluster, "--cluster").costs;
    declared_ = {costs.flops_per_s, costs.bytes_per_s};
}

runtime::StepResult Observer::step(bool more) {
    ++taken_;
    const bool traced = traces(taken_), profiled = profiles(taken_);
    if (!traced && !profiled)
        return more && !traces(taken_ + 1) && !profiles(taken_ + 1) ? trainer_.step_and_begin_next() : trainer_.step();
    const runtime::StepResult result = trainer_.step(timelines_);
    ir::match_collectives(timelines_);
    if (traced && trainer_.ranks().group().is_first()) telemetry::write_trace(args_.trace, timelines_);
    traced_ |= traced;
    if (profiled) compile::add_step(breakdown_, profiled_++, timelines_, compile::kind_of);
    return result;
}

std::optional<Profile> Observer::finish() {
    if (!args_.trace.empty() && !traced_)
        telemetry::warn(fmt::format("--trace {}: nothing was written, as it is of step {} of this run, which took {} step{}",
                                    args_.trace, std::max<int64_t>(trace_step_, 1), taken_, taken_ == 1 ? "" : "s"));
    if (!args_.profile) return std::nullopt;
    if (profiled_ == 0) {
        telemetry::warn(fmt::format("--profile: the run took {} steps, and the first {} are not counted", taken_, kWarmUp));
        return std::nullopt;
    }
    if (!trainer_.ranks().group().is_first()) return std::nullopt;
    measure::Roofs roofs;
    if (args_.cluster.empty()) {
        roofs = measure::roofs(usable_cpus());
    } else {
        roofs = declared_;
    }
    // All ranks together have the machine's roofs; a rank has no more than its own threads reach.
    const auto ranks = static_cast<double>(compiled_.layout.ranks);
    const auto of_dtype = roofs.flops_per_s.find(compile::main_dtype(compiled_.programs[0]));
    const std::vector<double>& rates = of_dtype == roofs.flops_per_s.end() ? roofs.flops_per_s.at("f32") : of_dtype->second;
    const size_t threads = std::min(rates.size(), static_cast<size_t>(trainer_.rank_threads().threads_per_rank));
    const double flops = std::min(rates[threads - 1], rates.back() / ranks),
                 bytes = std::min(roofs.copy_bytes_per_s[threads - 1], roofs.copy_bytes_per_s.back() / ranks);
    return Profile{std::move(breakdown_), flops, bytes, profiled_};
}

}  // namespace lockstep::job
