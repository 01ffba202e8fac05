#include "planning/plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/round.h"
#include "compile/traffic.h"
#include "ops/rule.h"
#include "planning/run_data.h"
#include "planning/topology.h"

namespace lockstep::planning {
namespace {

// Between hosts a step takes time that the file must tell.
void require_links(const compile::Config& config, const Machine& machine) {
    const sim::Hosts& hosts = machine.cluster->hosts;
    const int64_t ranks = compile::layout_of(config).ranks;
    require_links_of_devices(*machine.cluster, machine.file, ranks);
    if (hosts.ranks == 0 || hosts.ranks >= ranks || hosts.link.bandwidth_bytes_per_s > 0) return;
    throw UserError("plan.no_link", "hosts.bandwidth_bytes_per_s",
                    fmt::format("{}: {} ranks need {} hosts of {}, and the file says nothing of their links: give "
                                "hosts.bandwidth_bytes_per_s, or measure it with `mpirun ... lockstep bench` over hosts",
                                machine.file, ranks, ceil_div(ranks, hosts.ranks), hosts.ranks));
}

// Is a step of such programs launched once on `machine`, as a graph?
bool is_launched_once(const compile::Config& config, const compile::Compiled& compiled, const sim::Cluster& cluster) {
    return may_run_as_graph(config, cluster) &&
           compile::runs_as_graph(config, compiled.programs, compiled.microbatches_for_each());
}

// As `machine` runs such programs of a recipe.
sim::Cluster cluster_that_runs(const compile::Config& config, const compile::Compiled& compiled, const Machine& machine) {
    sim::Cluster cluster = *machine.cluster;
    if (is_launched_once(config, compiled, cluster)) cluster.host.launch_s = 0;
    return cluster;
}

// Of islands, of all parts of the model; 0 where there are none.
double meeting_s_of(const compile::Compiled& compiled, const compile::Config& config, const sim::Cluster& cluster,
                    const compile::RankThreads& rank_threads) {
    double out = 0;
    const int64_t fragments = compiled.layout.partition.outer ? compiled.layout.partition.outer->fragments : 0;
    for (int64_t f = 0; f < fragments; ++f)
        out += sim::time_of(compiled.programs, ir::EntryKind::Outer, cluster, rank_threads, compile::local_link(config), f)
                   .step_time_s;
    return out;
}

// Everything that the time of a program depends on, apart from the program.
bool are_timed_alike(const compile::Config& a, const compile::Config& b, const Machine& of_a, const Machine& of_b) {
    return a.runtime == b.runtime && a.fault_tolerance == b.fault_tolerance &&
           of_a.rank_threads.threads_per_rank == of_b.rank_threads.threads_per_rank &&
           of_a.rank_threads.comm_thread == of_b.rank_threads.comm_thread;
}

}  // namespace

bool may_run_as_graph(const compile::Config& config, const sim::Cluster& cluster) {
    if (!cluster.stack.name.empty() || config.runtime.cuda_graph == compile::CudaGraph::False) return false;
    return config.on_gpu() || config.runtime.cuda_graph == compile::CudaGraph::True;
}

Timing timing_of(const compile::Config& config, const compile::Compiled& compiled, const Machine& machine) {
    std::optional<sim::Cluster> without_launches;
    if (machine.cluster->host.launch_s > 0 && is_launched_once(config, compiled, *machine.cluster))
        without_launches = cluster_that_runs(config, compiled, machine);
    const sim::Cluster& cluster = without_launches ? *without_launches : *machine.cluster;
    return {sim::time_of(compiled.programs, ir::EntryKind::Train, cluster, machine.rank_threads, compile::local_link(config)),
            meeting_s_of(compiled, config, cluster, machine.rank_threads)};
}

double step_s(const compile::Compiled& compiled, const Timing& timing) {
    return step_s(compiled, timing.simulated) + timing.meeting_s / static_cast<double>(compiled.layout.sync_steps);
}

void require_links_of_devices(const sim::Cluster& cluster, const std::string& file, int64_t ranks) {
    if (cluster.devices && cluster.links.empty() && ranks > 1)
        throw UserError("plan.no_link", "links",
                        fmt::format("{}: the file says nothing of links between devices, and {} ranks use some: add [[links]], "
                                    "such as those of clusters/h100.toml",
                                    file, ranks));
}

Plan make_plan(const compile::Config& config, Machine machine) {
    require_links(config, machine);
    compile::Compiled compiled = compile::compile(config, machine.options);
    return make_plan(config, std::move(machine), std::move(compiled));
}

Plan make_plan(const compile::Config& config, Machine machine, compile::Compiled compiled) {
    Plan plan;
    plan.compiled = std::move(compiled);
    plan.cluster = cluster_that_runs(config, plan.compiled, machine), plan.rank_threads = machine.rank_threads;
    plan.hides_nothing = compile::hides_nothing(config, plan.rank_threads);
    const ops::CostTable& costs = plan.cluster.costs;
    plan.reports = compile::reports_of(plan.compiled);
    plan.simulated =
        sim::simulate(plan.compiled.programs, ir::EntryKind::Train, plan.cluster, plan.rank_threads, compile::local_link(config));
    plan.meeting_s = meeting_s_of(plan.compiled, config, plan.cluster, plan.rank_threads);
    for (const ir::Timeline& t : plan.simulated.timelines)
        compile::add_step(plan.breakdowns.emplace_back(), 0, {&t, 1}, compile::name_of, plan.compiled.microbatches_for_each());
    const std::string dtype = compile::main_dtype(plan.compiled.programs[0]);
    const int64_t on_machine = sim::ranks_sharing_cores(plan.cluster, plan.compiled.layout.ranks);
    const auto used = static_cast<int>(std::min<int64_t>(costs.cores, on_machine * plan.rank_threads.threads_per_rank));
    plan.peak_flops_per_s = plan.cluster.devices ? ops::flops_roof(costs, dtype, 1)
                                                 : ops::flops_roof(costs, dtype, used) / static_cast<double>(on_machine);
    plan.needed = needed_by(machine, plan.compiled);
    plan.fits = has_room(machine, plan.needed.bytes);
    plan.machine = std::move(machine);
    return plan;
}

Step step_of(const compile::Config& config, const Machine& machine, const compile::Config& known_config, const Plan& known) {
    require_links(config, machine);
    const compile::Compiled compiled = compile::compile(config, machine.options);
    Step out;
    out.ranks = compiled.layout.ranks, out.tokens = compiled.layout.global_batch * compiled.layout.seq_len;
    out.bytes = needed_by(machine, compiled).bytes;
    out.fits = has_room(machine, out.bytes);
    for (const compile::GroupTraffic& g : compile::traffic_of(compiled, {})) out.sent_bytes += g.total_bytes();
    if (compiled.layout.microbatches == known.compiled.layout.microbatches && compiled.programs == known.compiled.programs &&
        are_timed_alike(config, known_config, machine, known.machine)) {
        out.step_s = known.step_s();
        return out;
    }
    out.step_s = step_s(compiled, timing_of(config, compiled, machine));
    return out;
}

compile::Recipe opened_for_plan(compile::Recipe recipe, const std::string& cluster_file) {
    set_levels(recipe, cluster_file);
    open_run_data(recipe, MissingData::Assume);
    return recipe;
}

Plan make_plan(compile::Recipe recipe, const std::string& cluster_file) {
    return plan_of_opened(opened_for_plan(std::move(recipe), cluster_file), cluster_file);
}

Plan plan_of_opened(const compile::Recipe& recipe, const std::string& cluster_file) {
    const compile::Config config = compile::config_of(recipe);
    if (cluster_file.empty() && config.cluster.file.empty())
        throw UserError(
            "plan.no_cluster", "--cluster",
            "plan needs to know the machine: give --cluster FILE (clusters/ has some, and `lockstep bench` writes one "
            "for this machine), or set cluster.file in the recipe");
    return make_plan(config, machine_of(config, cluster_file));
}

std::optional<PlannedStep> planned_step(const compile::Config& config, const std::string& cluster_file, const char* asked_by) {
    const sim::Cluster cluster = sim::read_cluster(cluster_file, asked_by);
    const bool one_host = cluster.hosts.ranks == 0 || compile::layout_of(config).ranks <= cluster.hosts.ranks;
    if (cluster.declared || cluster.devices != config.on_gpu()) return std::nullopt;
    if (!one_host && cluster.hosts.link.bandwidth_bytes_per_s <= 0) return std::nullopt;
    const Plan p = make_plan(config, described_machine(config, cluster_file, asked_by));
    return PlannedStep{p.step_s(), p.peak_flops_per_s, p.cluster.name};
}

}  // namespace lockstep::planning
