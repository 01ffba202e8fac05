// A recipe's step on a described machine: simulated, not run. Time, memory and use of the machine.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "compile/breakdown.h"
#include "compile/memory_report.h"
#include "planning/machine.h"
#include "sim/simulate.h"

namespace lockstep::planning {

// The microbatches that were not simulated take as long as those of the steady state.
inline double step_s(const compile::Compiled& compiled, const sim::StepTime& simulated) {
    const int64_t more = compiled.layout.microbatches - compiled.programs[0].microbatches;
    return simulated.step_time_s + static_cast<double>(more) * simulated.microbatch_s;
}

struct Plan {
    sim::Cluster cluster;
    Machine machine;
    compile::RankThreads rank_threads;
    compile::Compiled compiled;
    std::vector<compile::StageReport> reports;  // by pipeline rank
    sim::Simulated simulated;
    double meeting_s = 0;                        // of islands, of all parts of the model
    std::vector<compile::Breakdown> breakdowns;  // by pipeline rank
    double peak_flops_per_s = 0;                 // of a rank
    std::string hides_nothing;                   // why asynchronous tensor parallelism does
    Needed needed;
    bool fits = true;

    // With a step's share of a meeting.
    double step_s() const {
        return planning::step_s(compiled, simulated) + meeting_s / static_cast<double>(compiled.layout.sync_steps);
    }
    double tokens_per_s() const {
        const auto tokens = static_cast<double>(compiled.layout.global_batch * compiled.layout.seq_len);
        return tokens / step_s();
    }
    double utilization(double flops) const { return flops / step_s() / peak_flops_per_s; }
};

// What a step of such programs takes on `machine`, without its timelines. `plan` and `tune` both take it from here.
struct Timing {
    sim::StepTime simulated;
    double meeting_s = 0;  // of islands, of all parts of the model
};
Timing timing_of(const compile::Config& config, const compile::Compiled& compiled, const Machine& machine);
// With a step's share of a meeting.
double step_s(const compile::Compiled& compiled, const Timing& timing);

// Whether a step may run as one CUDA graph, whatever its layout: then launches may take no time.
bool may_run_as_graph(const compile::Config& config, const sim::Cluster& cluster);

// UserError plan.no_link where the file says nothing of what joins devices, and there are several.
void require_links_of_devices(const sim::Cluster& cluster, const std::string& file, int64_t ranks);

// The step of `config` on `machine`, which a cluster file describes. UserError plan.no_link.
Plan make_plan(const compile::Config& config, Machine machine);
// The same of what `config` was compiled to.
Plan make_plan(const compile::Config& config, Machine machine, compile::Compiled compiled);

// What a step of another configuration takes and needs, without what else a plan tells.
struct Step {
    double step_s = 0;
    int64_t bytes = 0;  // of the rank with the most
    int64_t ranks = 0, tokens = 0;
    double sent_bytes = 0;  // by a rank in all collectives of a step (compile::traffic_of); of pipeline ranks the most
    bool fits = true;
};
// `known`: the plan of `known_config`. What has the same program is not simulated again.
Step step_of(const compile::Config& config, const Machine& machine, const compile::Config& known_config, const Plan& known);

// Opens the recipe's data if it is there, and plans on the cluster of `cluster_file`, else of cluster.file. UserError
// plan.no_cluster where neither is given, recipe.*, cluster.*.
Plan make_plan(compile::Recipe recipe, const std::string& cluster_file);
// The two halves of it: several plans of one recipe open its data, and say what is missing there, once.
compile::Recipe opened_for_plan(compile::Recipe recipe, const std::string& cluster_file);
Plan plan_of_opened(const compile::Recipe& recipe, const std::string& cluster_file);

struct PlannedStep {
    double step_time_s = 0, peak_flops_per_s = 0;  // the peak: of a rank
    std::string cluster;                           // its name
};
// None where the file describes devices and the recipe runs on none, or rates that were not measured, or too few hosts without
// their links: it is not of a machine that trains here. UserError cluster.*.
std::optional<PlannedStep> planned_step(const compile::Config& config, const std::string& cluster_file, const char* asked_by);

}  // namespace lockstep::planning
