#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include <algorithm>

#include "base/error.h"
#include "base/round.h"
#include "cli/commands.h"
#include "cli/machine.h"
#include "cli/plan.h"
#include "cli/run_data.h"
#include "cli/stage_json.h"
#include "compile/breakdown.h"
#include "ops/rule.h"
#include "sim/simulate.h"
#include "telemetry/console.h"
#include "telemetry/trace.h"

namespace lockstep::cli {
namespace {

struct PlanArgs {
    RecipeArgs recipe;
    std::string cluster, trace;
    bool json = false;
};

using Json = nlohmann::ordered_json;

struct Plan {
    sim::Cluster cluster;
    Machine machine;
    compile::Placement placement;
    compile::Compiled compiled;
    std::vector<compile::StageReport> reports;  // by pipeline rank
    sim::Simulated simulated;
    std::vector<compile::Breakdown> breakdowns;  // by pipeline rank
    double peak_flops_per_s = 0;                 // of a rank
    std::string hides_nothing;                   // why asynchronous tensor parallelism does
    bool fits = true;

    // The microbatches that were not simulated take as long as those of the steady state.
    double step_s() const {
        const int64_t more = compiled.layout.microbatches - compiled.programs[0].microbatches;
        return simulated.step_time_s + static_cast<double>(more) * simulated.microbatch_s;
    }
    double tokens_per_s() const {
        const auto tokens = static_cast<double>(compiled.layout.global_batch * compiled.layout.seq_len);
        return tokens / step_s();
    }
    double utilization(double flops) const { return flops / step_s() / peak_flops_per_s; }
};

// Between hosts a step takes time that the file must tell.
void require_links(const compile::Config& config, const Machine& machine) {
    const sim::Hosts& hosts = machine.cluster->hosts;
    const int64_t ranks = compile::layout_of(config).ranks;
    if (hosts.ranks == 0 || hosts.ranks >= ranks || hosts.link.bandwidth_bytes_per_s > 0) return;
    throw UserError("plan.no_link", "hosts.bandwidth_bytes_per_s",
                    fmt::format("{}: {} ranks need {} hosts of {}, and the file says nothing of their links: give "
                                "hosts.bandwidth_bytes_per_s, or measure it with `mpirun ... lockstep bench` over hosts",
                                machine.file, ranks, ceil_div(ranks, hosts.ranks), hosts.ranks));
}

Plan make_plan(const compile::Config& config, Machine machine) {
    require_links(config, machine);
    Plan plan;
    plan.cluster = *machine.cluster, plan.placement = machine.placement;
    plan.hides_nothing = compile::hides_nothing(config, plan.placement);
    const ops::CostTable& costs = plan.cluster.costs;
    plan.compiled = compile::compile(config, machine.options);
    plan.reports = compile::reports_of(plan.compiled);
    plan.simulated =
        sim::simulate(plan.compiled.programs, ir::EntryKind::Train, plan.cluster, plan.placement, compile::local_link(config));
    for (const ir::Timeline& t : plan.simulated.timelines)
        compile::add_step(plan.breakdowns.emplace_back(), 0, {&t, 1}, compile::name_of, plan.compiled.microbatches_for_each());
    const std::string dtype = compile::main_dtype(plan.compiled.programs[0]);
    const int64_t on_machine = sim::ranks_sharing_cores(plan.cluster, plan.compiled.layout.ranks);
    const auto used = static_cast<int>(std::min<int64_t>(costs.cores, on_machine * plan.placement.threads_per_rank));
    plan.peak_flops_per_s = plan.cluster.devices ? ops::flops_roof(costs, dtype, 1)
                                                 : ops::flops_roof(costs, dtype, used) / static_cast<double>(on_machine);
    plan.fits = !machine.capacity.bytes || plan.compiled.arena_bytes() <= *machine.capacity.bytes;
    plan.machine = std::move(machine);
    return plan;
}

struct Costly {
    std::string name;
    compile::TimeSpent spent;
};
std::vector<Costly> costliest(const compile::Breakdown& b, size_t count) {
    std::vector<Costly> all;
    for (const auto* part : {&b.ops, &b.beside}) {
        for (const auto& [name, spent] : *part) all.push_back({name, spent});
    }
    std::stable_sort(all.begin(), all.end(), [](const Costly& a, const Costly& c) { return a.spent.time_s > c.spent.time_s; });
    all.resize(std::min(all.size(), count));
    return all;
}

// Every rank of the pipeline by itself; then the costliest ops of all together, as the mean over pipeline ranks.
compile::Breakdown all_of(const std::vector<compile::Breakdown>& parts) {
    compile::Breakdown all;
    const double share = 1 / static_cast<double>(parts.size());
    for (const compile::Breakdown& b : parts) {
        for (auto [to, from] : {std::pair{&all.ops, &b.ops}, std::pair{&all.beside, &b.beside}}) {
            for (const auto& [name, spent] : *from) {
                compile::TimeSpent& s = (*to)[name];
                s.time_s += share * spent.time_s, s.count += share * spent.count;
                s.flops += share * spent.flops, s.bytes += share * spent.bytes;
            }
        }
    }
    return all;
}

Json to_json(const Plan& p) {
    Json stages = Json::array();
    for (size_t k = 0; k < p.reports.size(); ++k) {
        Json costly = Json::array();
        for (const Costly& c : costliest(p.breakdowns[k], 10)) {
            costly.push_back({{"op", c.name},
                              {"count", c.spent.count},
                              {"time_s", c.spent.time_s},
                              {"flops_per_s", c.spent.flops / c.spent.time_s},
                              {"bytes_per_s", c.spent.bytes / c.spent.time_s}});
        }
        Json stage = stage_json(p.compiled.programs[k], p.reports[k], static_cast<int64_t>(p.cluster.reserve_bytes));
        stage["waiting_s"] = p.breakdowns[k].waiting_s;
        stage["costliest"] = costly;
        stages.push_back(stage);
    }
    return {{"step_time_s", p.step_s()},
            {"tokens_per_s", p.tokens_per_s()},
            {"mfu", p.utilization(compile::flops_model_of_a_rank(p.reports))},
            {"hfu", p.utilization(compile::flops_executed_of_a_rank(p.reports))},
            {"bubble_fraction", p.simulated.bubble_s / p.step_s()},
            {"exposed_communication_s", p.simulated.exposed_communication_s},
            {"hidden_communication_s", p.simulated.hidden_communication_s},
            {"hidden_by_async_tensor_parallel_s", p.simulated.hidden_in_parts_s},
            {"fits", p.fits},
            {"ranks", p.compiled.layout.ranks},
            {"cluster", p.cluster.name},
            {"machine", machine_json(p.machine)},
            {"declared", p.cluster.declared},
            {"measured_share", p.simulated.measured_share},
            {"stages", stages}};
}

void print(const Plan& p) {
    const double step_s = p.step_s();
    fmt::print("{}: {}; {}\n", p.cluster.name, p.cluster.description, p.machine.kernels.text);
    if (p.cluster.declared) fmt::print("Estimate: this cluster file contains published rates, not measurements\n");
    fmt::print("ranks        {}{}\n", p.compiled.layout.ranks,
               p.cluster.devices ? ", a device each"
               : p.placement.comm_thread
                   ? fmt::format(", {} computing and one communicating thread each", p.placement.threads_per_rank)
                   : fmt::format(", {} threads each, communication inline", p.placement.threads_per_rank));
    fmt::print("step time    {:.6g} s\n", step_s);
    if (p.compiled.microbatches_for_each() > 1)
        fmt::print("             from {} of {} microbatches: each further one takes {:.6g} s\n",
                   p.compiled.programs[0].microbatches, p.compiled.layout.microbatches, p.simulated.microbatch_s);
    fmt::print("tokens       {:.6g} /s, {:.6g} /s and rank\n", p.tokens_per_s(),
               p.tokens_per_s() / static_cast<double>(p.compiled.layout.ranks));
    fmt::print("MFU, HFU     {:.1f} %, {:.1f} % of {:.4g} TFLOP/s a rank\n",
               100 * p.utilization(compile::flops_model_of_a_rank(p.reports)),
               100 * p.utilization(compile::flops_executed_of_a_rank(p.reports)), p.peak_flops_per_s / 1e12);
    fmt::print("communication exposed {:.6g} s ({:.1f} %), including {:.1f} % of the step waiting for other pipeline ranks\n",
               p.simulated.exposed_communication_s, 100 * p.simulated.exposed_communication_s / step_s,
               100 * p.simulated.bubble_s / step_s);
    fmt::print("              hidden {:.6g} s beside computation{}\n", p.simulated.hidden_communication_s,
               p.simulated.hidden_in_parts_s > 0
                   ? fmt::format(", {:.6g} s of them by asynchronous tensor parallelism", p.simulated.hidden_in_parts_s)
                   : "");
    if (!p.hides_nothing.empty()) fmt::print("              {}\n", p.hides_nothing);
    if (!p.cluster.declared)
        fmt::print("{:.0f} % of the ops' time comes from measured kernels, the rest from the machine's rates\n",
                   100 * p.simulated.measured_share);
    print_bytes(p.compiled, p.reports, p.machine.capacity.bytes.value_or(0));
    fmt::print("costliest ops                                          count          s      %    TFLOP/s      GB/s\n");
    for (const Costly& c : costliest(all_of(p.breakdowns), 10)) {
        const compile::TimeSpent& s = c.spent;
        fmt::print("  {:<50}{:>8.0f} {:>10.4g} {:>6.1f} {:>10.4g} {:>9.4g}\n", c.name, s.count, s.time_s, 100 * s.time_s / step_s,
                   s.flops / s.time_s / 1e12, s.bytes / s.time_s / 1e9);
    }
}

int plan(const PlanArgs& args) {
    compile::Recipe recipe = read_recipe(args.recipe);
    open_run_data(recipe, MissingData::Assume);
    const compile::Config config = compile::config_of(recipe);
    if (args.cluster.empty() && config.cluster.file.empty())
        throw UserError(
            "plan.no_cluster", "--cluster",
            "plan needs to know the machine: give --cluster FILE (clusters/ has some, and `lockstep bench` writes one "
            "for this machine), or set cluster.file in the recipe");
    const Plan p = make_plan(config, machine_of(config, args.cluster));
    if (!args.trace.empty()) telemetry::write_trace(args.trace, p.simulated.timelines);
    if (args.json) print_json(to_json(p));
    else print(p);
    if (p.fits) return kDone;
    telemetry::error(fmt::format("a rank needs {} and has {} ({}): `lockstep check` with --cluster {} says which keys lower it",
                                 gib(p.compiled.arena_bytes()), gib(*p.machine.capacity.bytes), p.machine.capacity.of,
                                 p.machine.file));
    return kRefused;
}

}  // namespace

std::optional<PlannedStep> planned_step(const compile::Config& config, const std::string& cluster_file, const char* asked_by) {
    const sim::Cluster cluster = sim::read_cluster(cluster_file, asked_by);
    const bool one_host = cluster.hosts.ranks == 0 || compile::layout_of(config).ranks <= cluster.hosts.ranks;
    if (cluster.devices || cluster.declared) return std::nullopt;
    if (!one_host && cluster.hosts.link.bandwidth_bytes_per_s <= 0) return std::nullopt;
    const Plan p = make_plan(config, described_machine(config, cluster_file, asked_by));
    return PlannedStep{p.step_s(), p.peak_flops_per_s, p.cluster.name};
}

Command add_plan(CLI::App& app) {
    const auto args = std::make_shared<PlanArgs>();
    CLI::App* command =
        app.add_subcommand("plan", "estimate step time, utilization and memory of a recipe on a machine, without running it");
    add_recipe_flags(*command, args->recipe);
    command->add_option("--cluster", args->cluster,
                        "cluster file, one of clusters/*.toml or one that `lockstep bench` wrote, in place of cluster.file");
    command->add_option(
        "--trace", args->trace,
        "write the planned timeline of a step to this file: one rank of each pipeline rank, in the form of `train --trace`");
    command->add_flag("--json", args->json, "one JSON object on standard output");
    command->footer("Example: lockstep plan recipes/llama3_8b.toml --cluster clusters/h100.toml");
    return {.app = command, .run = [args](comm::Crew&) { return plan(*args); }, .recipe = &args->recipe};
}

}  // namespace lockstep::cli
