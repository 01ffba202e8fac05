#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/groups.h"
#include "cli/machine.h"
#include "cli/run_data.h"
#include "cli/stage_json.h"
#include "telemetry/wrap.h"

namespace lockstep::cli {
namespace {

struct CheckArgs {
    RecipeArgs recipe;
    std::string cluster;  // file; empty: this machine
    bool json = false;
};

nlohmann::ordered_json to_json(const Machine& machine, const compile::Compiled& compiled,
                               const std::vector<compile::StageReport>& reports, const std::vector<compile::GroupTraffic>& groups,
                               const std::vector<double>& by_host) {
    nlohmann::ordered_json mesh, stages = nlohmann::ordered_json::array();
    for (mesh::Axis a : mesh::kAxes) mesh[std::string(mesh::name_of(a))] = compiled.layout.mesh.degree(a);
    for (size_t k = 0; k < reports.size(); ++k)
        stages.push_back(stage_json(compiled.programs[k], reports[k], machine.capacity.reserve));
    return {{"fits", true},    {"machine", machine_json(machine)}, {"ranks", compiled.layout.ranks},
            {"mesh", mesh},    {"groups", groups_json(groups)},    {"bytes_sent_by_host", by_host},
            {"stages", stages}};
}

int check(const CheckArgs& args) {
    compile::Compiled compiled;
    std::vector<compile::StageReport> reports;
    std::vector<compile::GroupTraffic> groups;
    std::vector<double> by_host;
    Machine machine;
    try {
        compile::Recipe recipe = read_recipe(args.recipe);
        open_run_data(recipe, MissingData::Assume);
        const compile::Config config = compile::config_of(recipe);
        machine = machine_of(config, args.cluster);
        compiled = compile::compile(config, machine.options);
        reports = compile::reports_of(compiled);
        groups = compile::traffic_of(compiled,
                                     hosts_described(machine.cluster, machine.options.route.topology, compiled.layout.ranks));
        by_host = compile::bytes_by_host(compiled, machine.options.route.topology);
        require_runnable(config, machine.options, compiled, machine.capacity);
    } catch (const UserError& e) {
        if (!args.json) throw;
        nlohmann::ordered_json refusal = {{"fits", false}};
        if (compiled.layout.ranks > 0 && e.id() == "check.does_not_fit") {
            refusal = to_json(machine, compiled, reports, groups, by_host);
            refusal["fits"] = false;
        }
        refusal["error"] = {{"message", e.what()}, {"key", e.key()}, {"id", e.id()}};
        print_json(refusal);
        return kRefused;
    }
    warn_of_hosts(machine.cluster, groups);
    if (args.json) {
        print_json(to_json(machine, compiled, reports, groups, by_host));
        return kDone;
    }
    const mesh::Mesh& mesh = compiled.layout.mesh;
    const Capacity& capacity = machine.capacity;
    fmt::print("machine      {}\n", machine_text(machine));
    fmt::print("ranks        {} = {}\n", compiled.layout.ranks, degrees_text(mesh));
    fmt::print("step         {} sequences of {} tokens in {}\n", compiled.layout.global_batch, compiled.layout.seq_len,
               telemetry::plural(compiled.layout.microbatches, "microbatch"));
    print_groups(groups);
    print_hosts(by_host);
    print_bytes(compiled, reports, 0);
    fmt::print("capacity       {:>31}   {}\n", capacity.bytes ? gib(*capacity.bytes) : "-", capacity.of);
    fmt::print("FLOPs of a rank and step: model {:.4g}, executed {:.4g}\n", compile::flops_model_of_a_rank(reports),
               compile::flops_executed_of_a_rank(reports));
    if (compiled.microbatches_for_each() > 1)
        fmt::print("checked on {} of {} microbatches, which the others repeat; `train` checks all\n",
                   compiled.programs[0].microbatches, compiled.layout.microbatches);
    fmt::print(
        "checked: order of collectives (no deadlock); memory, to the bytes of each op;\n"
        "         one contribution of each microbatch to each gradient\n"
        "not checked: arithmetic inside a routine\n"
        "fits\n");
    return kDone;
}

}  // namespace

Command add_check(CLI::App& app) {
    const auto args = std::make_shared<CheckArgs>();
    CLI::App* command = app.add_subcommand("check", "compile and check a recipe; print the exact memory of a rank");
    add_recipe_flags(*command, args->recipe);
    command->add_option(
        "--cluster", args->cluster,
        "cluster file, clusters/*.toml or what `lockstep bench` wrote, in place of cluster.file: compile for its kernels and "
        "hosts, and hold the plan against its memory");
    command->add_flag("--json", args->json, "one JSON object on standard output");
    command->footer("Example: lockstep check recipes/llama3_405b.toml");
    return {.app = command, .run = [args](comm::Crew&) { return check(*args); }, .recipe = &args->recipe};
}

}  // namespace lockstep::cli
