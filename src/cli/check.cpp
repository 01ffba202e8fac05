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

nlohmann::ordered_json to_json(const Capacity& capacity, const compile::Compiled& compiled,
                               const std::vector<compile::StageReport>& reports, const std::vector<compile::GroupTraffic>& groups,
                               const std::vector<double>& by_host) {
    nlohmann::ordered_json mesh, stages = nlohmann::ordered_json::array();
    for (mesh::Axis a : mesh::kAxes) mesh[std::string(mesh::name_of(a))] = compiled.layout.mesh.degree(a);
    for (size_t k = 0; k < reports.size(); ++k) stages.push_back(stage_json(compiled.programs[k], reports[k], capacity.reserve));
    return {{"fits", true},
            {"ranks", compiled.layout.ranks},
            {"mesh", mesh},
            {"groups", groups_json(groups)},
            {"bytes_sent_by_host", by_host},
            {"stages", stages}};
}

// What the recipe is compiled for and held against.
struct Machine {
    compile::CompileOptions options;
    Capacity capacity;
    std::optional<sim::Cluster> cluster;  // where it describes devices or hosts
};

Machine machine_of(const compile::Config& config, const CheckArgs& args) {
    if (!args.cluster.empty()) {
        Described d = described_machine(config, args.cluster, "--cluster");
        return {std::move(d.options), std::move(d.capacity), std::move(d.cluster)};
    }
    Machine m{compile_options(config), {}, described_cluster(config)};
    m.options.few_microbatches = true;
    const int64_t ranks = compile::layout_of(config).ranks;
    const std::string& file = config.cluster.file;
    if (!file.empty()) m.capacity = capacity_of(config, sim::read_cluster(file, "cluster.file"), file, ranks);
    if (!m.capacity.bytes) m.capacity = capacity_here(config, ranks, nullptr);
    const bool open = config.leaves_ranks_open();
    if (config.cluster.memory_gib_per_rank == 0)
        m.capacity.for_another = fmt::format(
            ". For another machine{} give --cluster FILE (clusters/ has some) or "
            "cluster.memory_gib_per_rank{}",
            file.empty() ? "" : " than that of cluster.file",
            open ? fmt::format(", and --ranks N: the recipe leaves the number of ranks open, and {} "
                               "{} assumed",
                               ranks, ranks == 1 ? "is" : "are")
                 : "");
    return m;
}

int check(const CheckArgs& args) {
    compile::Compiled compiled;
    std::vector<compile::StageReport> reports;
    std::vector<compile::GroupTraffic> groups;
    std::vector<double> by_host;
    Capacity capacity;
    std::optional<sim::Cluster> cluster;  // where it says where ranks are
    try {
        compile::Recipe recipe = read_recipe(args.recipe);
        open_run_data(recipe, MissingData::Assume);
        const compile::Config config = compile::config_of(recipe);
        const Machine machine = machine_of(config, args);
        capacity = machine.capacity, cluster = machine.cluster;
        compiled = compile::compile(config, machine.options);
        reports = compile::reports_of(compiled);
        groups = compile::traffic_of(compiled, hosts_described(cluster, machine.options.route.topology, compiled.layout.ranks));
        by_host = compile::bytes_by_host(compiled, machine.options.route.topology);
        require_runnable(config, machine.options, compiled, capacity);
    } catch (const UserError& e) {
        if (!args.json) throw;
        nlohmann::ordered_json refusal = {{"fits", false}};
        if (compiled.layout.ranks > 0 && e.id() == "check.does_not_fit") {
            refusal = to_json(capacity, compiled, reports, groups, by_host);
            refusal["fits"] = false;
        }
        refusal["error"] = {{"message", e.what()}, {"key", e.key()}, {"id", e.id()}};
        print_json(refusal);
        return kRefused;
    }
    warn_of_hosts(cluster, groups);
    if (args.json) {
        print_json(to_json(capacity, compiled, reports, groups, by_host));
        return kDone;
    }
    const mesh::Mesh& mesh = compiled.layout.mesh;
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
        "cluster file: clusters/*.toml, or what `lockstep bench` wrote: compile for its hosts and hold the plan against "
        "its memory instead of this machine's");
    command->add_flag("--json", args->json, "one JSON object on standard output");
    command->footer("Example: lockstep check recipes/llama3_405b.toml");
    return {.app = command, .run = [args](comm::Crew&) { return check(*args); }, .recipe = &args->recipe};
}

}  // namespace lockstep::cli
