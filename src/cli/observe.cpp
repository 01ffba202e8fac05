#include "cli/observe.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/processors.h"
#include "compile/report.h"
#include "measure/roofs.h"
#include "sim/cluster.h"
#include "telemetry/console.h"
#include "telemetry/trace.h"

namespace lockstep::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kWarmUp = 2;  // steps that step_time_s leaves out too

struct Row {
    std::string op, thread;
    compile::TimeSpent spent;
};

std::vector<Row> rows_of(const compile::Breakdown& b) {
    std::vector<Row> rows;
    for (const auto& [name, spent] : b.ops) rows.push_back({name, "compute", spent});
    std::stable_sort(rows.begin(), rows.end(), [](const Row& x, const Row& y) { return x.spent.time_s > y.spent.time_s; });
    const auto middle = rows.size();
    for (const auto& [name, spent] : b.beside) rows.push_back({name, "communication", spent});
    std::stable_sort(rows.begin() + static_cast<long>(middle), rows.end(),
                     [](const Row& x, const Row& y) { return x.spent.time_s > y.spent.time_s; });
    return rows;
}

void print(const compile::Breakdown& b, double flops_roof, double bytes_roof, int64_t steps) {
    fmt::print("a step of {:.3f} ms (mean over {} steps and all ranks; roofs of a rank: {:.1f} GFLOP/s, {:.1f} GB/s)\n",
               1e3 * b.step_s, steps, flops_roof / 1e9, bytes_roof / 1e9);
    fmt::print("  {:<26}{:>8}{:>12}{:>8}{:>10}{:>7}{:>9}{:>7}\n", "op", "count", "ms", "%", "GFLOP/s", "roof", "GB/s", "roof");
    bool beside = false;
    const auto share = [&](double time_s) { return 100 * time_s / b.step_s; };
    const auto line = [&](const char* name, double time_s) {
        fmt::print("  {:<26}{:>8}{:>12.3f}{:>8.1f}\n", name, "", 1e3 * time_s, share(time_s));
    };
    for (const Row& row : rows_of(b)) {
        if (row.thread == "communication" && !beside) {
            line("waiting", b.waiting_s), line("data", b.data_s), line("executor", b.remainder_s);
            beside = true;
            fmt::print("  beside it, on the communication thread\n");
        }
        const compile::TimeSpent& s = row.spent;
        const double flops = s.flops / s.time_s, bytes = s.bytes / s.time_s;
        const bool computes = flops > 0.02 * flops_roof;
        fmt::print("  {:<26}{:>8.0f}{:>12.3f}{:>8.1f}{:>10}{:>7}{:>9.1f}{:>6.0f}%\n", row.op, s.count, 1e3 * s.time_s,
                   share(s.time_s), computes ? fmt::format("{:.1f}", flops / 1e9) : "",
                   computes ? fmt::format("{:.0f}%", 100 * flops / flops_roof) : "", bytes / 1e9, 100 * bytes / bytes_roof);
    }
    if (!beside) line("waiting", b.waiting_s), line("data", b.data_s), line("executor", b.remainder_s);
}

Json to_json(const compile::Breakdown& b, double flops_roof, double bytes_roof, int64_t steps) {
    Json ops = Json::array();
    for (const Row& row : rows_of(b)) {
        const compile::TimeSpent& s = row.spent;
        ops.push_back({{"op", row.op},
                       {"thread", row.thread},
                       {"count", s.count},
                       {"time_s", s.time_s},
                       {"flops_per_s", s.flops / s.time_s},
                       {"bytes_per_s", s.bytes / s.time_s}});
    }
    return {{"steps", steps},
            {"step_time_s", b.step_s},
            {"waiting_s", b.waiting_s},
            {"data_s", b.data_s},
            {"executor_s", b.remainder_s},
            {"roof_flops_per_s", flops_roof},
            {"roof_bytes_per_s", bytes_roof},
            {"ops", ops}};
}

}  // namespace

Observer::Observer(const ObserveArgs& args, runtime::Trainer& trainer, const compile::Compiled& compiled, int64_t steps)
    : args_(args), trainer_(trainer), compiled_(compiled) {
    trace_step_ = args.trace_step > 0 ? args.trace_step : std::min<int64_t>(steps, kWarmUp + 1);
    if (!args.trace.empty()) {
        comm::Crew& crew = trainer.ranks().crew();
        crew.together([&] {
            if (crew.is_first()) telemetry::require_can_be_written(args.trace);
        });
    }
    if (!args.trace.empty() || args.profile) timelines_ = trainer.new_timelines();
    if (args.cluster.empty()) return;
    const ops::CostTable costs = sim::read_cluster(args.cluster, "--cluster").costs;
    declared_ = {costs.flops_per_s, costs.bytes_per_s};
}

runtime::StepResult Observer::step() {
    ++taken_;
    const bool traced = !args_.trace.empty() && taken_ == trace_step_, profiled = args_.profile && taken_ > kWarmUp;
    if (!traced && !profiled) return trainer_.step();
    const runtime::StepResult result = trainer_.step(timelines_);
    ir::match_collectives(timelines_);
    if (traced && trainer_.ranks().crew().is_first()) telemetry::write_trace(args_.trace, timelines_);
    traced_ |= traced;
    if (profiled) compile::add_step(breakdown_, profiled_++, timelines_, compile::kind_of);
    return result;
}

Json Observer::finish(bool quiet) {
    if (!args_.trace.empty() && !traced_)
        telemetry::warn(fmt::format("--trace {}: nothing was written, as it is of step {} of this run, which took {} step{}",
                                    args_.trace, std::max<int64_t>(trace_step_, 1), taken_, taken_ == 1 ? "" : "s"));
    if (!args_.profile) return nullptr;
    if (profiled_ == 0) {
        telemetry::warn(fmt::format("--profile: the run took {} steps, and the first {} are not counted", taken_, kWarmUp));
        return nullptr;
    }
    if (!trainer_.ranks().crew().is_first()) return nullptr;
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
    const size_t threads = std::min(rates.size(), static_cast<size_t>(trainer_.placement().threads_per_rank));
    const double flops = std::min(rates[threads - 1], rates.back() / ranks),
                 bytes = std::min(roofs.copy_bytes_per_s[threads - 1], roofs.copy_bytes_per_s.back() / ranks);
    if (!quiet) print(breakdown_, flops, bytes, profiled_);
    return to_json(breakdown_, flops, bytes, profiled_);
}

}  // namespace lockstep::cli
