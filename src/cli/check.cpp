#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/groups.h"
#include "cli/stage_json.h"

namespace lockstep::cli {
namespace {

struct CheckArgs {
    RecipeArgs recipe;
    bool json = false;
};

nlohmann::ordered_json to_json(const compile::Recipe& recipe, const compile::Compiled& compiled,
                               const std::vector<compile::StageReport>& reports, const std::vector<compile::GroupTraffic>& groups,
                               const std::vector<double>& by_host) {
    nlohmann::ordered_json mesh, stages = nlohmann::ordered_json::array();
    for (mesh::Axis a : mesh::kAxes) mesh[std::string(mesh::name_of(a))] = compiled.layout.mesh.degree(a);
    const auto reserve = static_cast<int64_t>(recipe.number("cluster.reserve_gib_per_rank") * (1 << 30));
    for (size_t k = 0; k < reports.size(); ++k) stages.push_back(stage_json(compiled.programs[k], reports[k], reserve));
    return {{"fits", true},
            {"ranks", compiled.layout.ranks},
            {"mesh", mesh},
            {"groups", groups_json(groups)},
            {"bytes_sent_by_host", by_host},
            {"stages", stages}};
}

int check(const CheckArgs& args) {
    compile::Recipe recipe;
    compile::Compiled compiled;
    std::vector<compile::StageReport> reports;
    std::vector<compile::GroupTraffic> groups;
    std::vector<double> by_host;
    try {
        recipe = read_recipe(args.recipe);
        take_vocabulary(recipe, MissingData::Assume);
        compile::CompileOptions options = compile_options(recipe);
        options.few_microbatches = true;
        compiled = compile::compile(recipe, options);
        reports = compile::reports_of(compiled);
        groups = compile::traffic_of(compiled, hosts_described(recipe, options.route.topology, compiled.layout.ranks));
        by_host = compile::bytes_by_host(compiled, options.route.topology);
        require_runnable(recipe, options, compiled);
    } catch (const UserError& e) {
        if (!args.json) throw;
        nlohmann::ordered_json refusal = {{"fits", false}};
        if (compiled.layout.ranks > 0 && e.id() == "check.does_not_fit") {
            refusal = to_json(recipe, compiled, reports, groups, by_host);
            refusal["fits"] = false;
        }
        refusal["error"] = {{"message", e.what()}, {"key", e.key()}, {"id", e.id()}};
        fmt::print("{}\n", refusal.dump());
        return kRefused;
    }
    warn_of_hosts(recipe, groups);
    if (args.json) {
        fmt::print("{}\n", to_json(recipe, compiled, reports, groups, by_host).dump());
        return kDone;
    }
    const mesh::Mesh& mesh = compiled.layout.mesh;
    fmt::print("ranks        {} = {}\n", compiled.layout.ranks, degrees_text(mesh));
    fmt::print("step         {} sequences of {} tokens in {} microbatches\n", compiled.layout.global_batch,
               compiled.layout.seq_len, compiled.layout.microbatches);
    print_groups(groups);
    print_hosts(by_host);
    print_bytes(compiled, reports, 0);
    fmt::print("capacity       {:>31}\n", gib(capacity_per_rank(recipe, compiled)));
    fmt::print("FLOPs of a rank and step: model {:.4g}, executed {:.4g}\n", compile::flops_model_of_a_rank(reports),
               compile::flops_executed_of_a_rank(reports));
    if (compiled.microbatches_for_each() > 1)
        fmt::print("checked on {} of {} microbatches, which the others repeat; `train` checks all\n",
                   compiled.programs[0].microbatches, compiled.layout.microbatches);
    fmt::print(
        "checked: order of collectives (no deadlock); buffers between calls;\n"
        "         one contribution of each microbatch to each gradient\n"
        "not checked: memory and arithmetic inside a routine\n"
        "fits\n");
    return kDone;
}

}  // namespace

Command add_check(CLI::App& app) {
    const auto args = std::make_shared<CheckArgs>();
    CLI::App* command = app.add_subcommand("check", "compile a recipe, prove that it runs, print the exact memory of a rank");
    add_recipe_flags(*command, args->recipe);
    command->add_flag("--json", args->json, "one JSON object on standard output");
    command->footer("Example: lockstep check recipes/llama3_405b.toml");
    return {.app = command, .run = [args](comm::Crew&) { return check(*args); }, .recipe = &args->recipe};
}

}  // namespace lockstep::cli
