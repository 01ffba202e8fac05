#include "sim/steady.h"

#include <algorithm>

#include "base/round.h"
#include "sim/simulate.h"

namespace lockstep::sim {
namespace {

std::optional<Steady> steady_of(const std::vector<ir::Program>& programs) {
    const int64_t ranks = std::ssize(programs), last = programs[0].microbatches - 2 * ranks - 1;
    int64_t count = std::min(std::clamp<int64_t>(ranks, 8, 16), last);
    if (programs[0].stages.size() > 1) count = std::min(round_up(8, ranks), last / ranks * ranks);
    if (count < 1) return std::nullopt;
    return Steady{last - count, last};
}

bool is_of_microbatch(ir::RoutineKind kind) {
    return ir::is_forward(kind) || ir::is_backward(kind) || kind == ir::RoutineKind::Transfer;
}

}  // namespace

SteadyTimes::SteadyTimes(const std::vector<ir::Program>& programs) : of_(steady_of(programs)) {}

bool SteadyTimes::has(const ir::Routine& r, const ir::Call& call) const {
    return of_ && is_of_microbatch(r.kind) && of_->has(call.microbatch);
}

bool SteadyTimes::asks_end(const ir::Routine& r, const ir::Call& call) const {
    return of_ && ir::is_backward(r.kind) && (call.microbatch == of_->before || call.microbatch == of_->last);
}

void SteadyTimes::end(const ir::Routine& r, const ir::Call& call, double end_s) {
    if (!asks_end(r, call)) return;
    double& last_s = call.microbatch == of_->before ? before_s_ : last_s_;
    last_s = std::max(last_s, end_s);
}

StepTime SteadyTimes::step(double end_s, const std::vector<ir::Program>& programs, const Cluster& cluster) const {
    StepTime out;
    if (of_) {
        for (const std::vector<double>* parts : {&computing_s_, &links_s_})
            for (const double time_s : *parts) out.busiest_s = std::max(out.busiest_s, time_s / of_->count());
        out.microbatch_s = std::max((last_s_ - before_s_) / of_->count(), out.busiest_s);
    }
    out.step_time_s = end_s + cluster.costs.step_overhead_s;
    if (!cluster.devices) return out;
    const int64_t ranks = programs[0].mesh.world_ranks();
    out.step_time_s = with_host(end_s, cluster, ranks);
    for (double* of_microbatch : {&out.microbatch_s, &out.busiest_s}) *of_microbatch *= factor_of(cluster, ranks);
    return out;
}

}  // namespace lockstep::sim
