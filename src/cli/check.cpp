#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/stage_json.h"
#include "cli/terminal.h"
#include "planning/check.h"
#include "planning/topology.h"
#include "planning/types.h"
#include "telemetry/wrap.h"

namespace lockstep::cli {
namespace {

struct CheckArgs {
    planning::RecipeArgs recipe;
    std::string cluster;  // file; empty: this machine
    bool json = false;
};

std::string text_of(const std::vector<int64_t>& ranks) {
    if (ranks.size() <= 8) return fmt::format("{}", fmt::join(ranks, " "));
    return fmt::format("{} {} {} ... {}", ranks[0], ranks[1], ranks[2], ranks.back());
}

void print_groups(const std::vector<compile::GroupTraffic>& groups) {
    if (groups.empty()) return;
    size_t axes = 4, ranks = 8;
    for (const compile::GroupTraffic& g : groups)
        axes = std::max(axes, g.axes.size()), ranks = std::max(ranks, text_of(g.first).size());
    fmt::print("groups       {:<{}}  of ranks  groups  hosts  {:<{}}  a rank sends in a step\n", "along", axes, "e.g.", ranks);
    for (const compile::GroupTraffic& g : groups) {
        std::vector<std::string> parts;
        for (const auto& [kind, bytes] : g.bytes) parts.push_back(fmt::format("{} {}", kind, planning::size_text(bytes)));
        fmt::print("             {:<{}}{:>10}{:>8}{:>7}  {:<{}}  {}\n", g.axes, axes, g.members, g.groups,
                   g.hosts > 0 ? std::to_string(g.hosts) : "-", text_of(g.first), ranks, fmt::join(parts, ", "));
    }
}

void print_hosts(const std::vector<double>& bytes) {
    if (bytes.size() < 2) return;
    const auto [least, most] = std::minmax_element(bytes.begin(), bytes.end());
    fmt::print("hosts        {}; each sends {} in a step to others\n", bytes.size(),
               *least == *most ? planning::size_text(*most)
                               : fmt::format("{} to {}", planning::size_text(*least), planning::size_text(*most)));
}

nlohmann::ordered_json groups_json(const std::vector<compile::GroupTraffic>& groups) {
    nlohmann::ordered_json out = nlohmann::ordered_json::array();
    for (const compile::GroupTraffic& g : groups)
        out.push_back({{"along", g.axes},
                       {"members", g.members},
                       {"groups", g.groups},
                       {"hosts", g.hosts},
                       {"ranks", g.first},
                       {"bytes_sent_by_a_rank", g.bytes}});
    return out;
}

nlohmann::ordered_json to_json(const planning::Checked& c) {
    nlohmann::ordered_json mesh, stages = nlohmann::ordered_json::array();
    for (mesh::Axis a : mesh::kAxes) mesh[std::string(mesh::name_of(a))] = c.compiled.layout.mesh.degree(a);
    for (size_t k = 0; k < c.reports.size(); ++k)
        stages.push_back(stage_json(c.compiled.programs[k], c.reports[k], c.machine.capacity.reserve));
    return {{"fits", !c.refusal},
            {"machine", planning::machine_json(c.machine)},
            {"ranks", c.compiled.layout.ranks},
            {"mesh", mesh},
            {"groups", groups_json(c.groups)},
            {"bytes_sent_by_host", c.bytes_by_host},
            {"stages", stages}};
}

int refused(nlohmann::ordered_json out, const UserError& e) {
    out["error"] = {{"message", e.what()}, {"key", e.key()}, {"id", e.id()}};
    print_json(out);
    return kRefused;
}

// The answer in one line.
std::string verdict_of(const planning::Checked& c) {
    const std::optional<int64_t>& has = c.machine.capacity.bytes;
    if (c.refusal && c.refusal->id() == "check.host_memory")
        return "does not fit: the host's memory, apart from that of its devices";
    return fmt::format("{}: {}{} a rank on {}", c.refusal ? "does not fit" : "fits", telemetry::gib(c.compiled.arena_bytes()),
                       has ? " of " + telemetry::gib(std::max<int64_t>(*has, 0)) : "",
                       telemetry::plural(c.compiled.layout.ranks, "rank"));
}

void print(const planning::Checked& checked) {
    const auto& [machine, compiled, reports, groups, by_host, none] = checked;
    const mesh::Mesh& mesh = compiled.layout.mesh;
    const planning::Capacity& capacity = machine.capacity;
    fmt::print("machine      {}\n", planning::machine_text(machine));
    fmt::print("ranks        {} = {}\n", compiled.layout.ranks, mesh::text(mesh.degrees));
    fmt::print("step         {} sequences of {} tokens in {}\n", compiled.layout.global_batch, compiled.layout.seq_len,
               telemetry::plural(compiled.layout.microbatches, "microbatch"));
    print_groups(groups);
    print_hosts(by_host);
    print_bytes(compiled, reports, 0);
    fmt::print("capacity       {:>31}   {}\n", capacity.bytes ? telemetry::gib(*capacity.bytes) : "-", capacity.of);
    fmt::print("FLOPs of a rank and step: model {:.4g}, executed {:.4g}\n", compile::flops_model_of_a_rank(reports),
               compile::flops_executed_of_a_rank(reports));
    if (compiled.microbatches_for_each() > 1)
        fmt::print("checked on {} of {} microbatches, which the others repeat; `train` checks all\n",
                   compiled.programs[0].microbatches, compiled.layout.microbatches);
    fmt::print(
        "checked: order of collectives (no deadlock); memory, to the bytes of each op;\n"
        "         one contribution of each microbatch to each gradient;\n"
        "         each block against its model, forward and backward, at a small size\n"
        "not checked: rounding, and what depends on a dim's full length\n");
}

int check(const CheckArgs& args) {
    planning::Checked checked;
    interop::Reading reading;
    try {
        reading = planning::announced(args.recipe);
        checked = planning::check(reading.recipe, args.cluster);
    } catch (const UserError& e) {
        if (!args.json) throw;
        return refused({{"fits", false}}, e);
    }
    if (checked.refusal) {
        if (!args.json) {
            print_verdict(verdict_of(checked), false);
            throw *checked.refusal;
        }
        return refused(with_source(to_json(checked), reading), *checked.refusal);
    }
    planning::warn_of_hosts(checked.machine.cluster, checked.groups, checked.compiled.layout.ranks);
    if (args.json) {
        print_json(with_source(to_json(checked), reading));
        return kDone;
    }
    print_verdict(verdict_of(checked), true);
    at_terminal_width([&] { print(checked); });
    return kDone;
}

}  // namespace

Command add_check(CLI::App& app) {
    const auto args = std::make_shared<CheckArgs>();
    CLI::App* command = app.add_subcommand("check", "compile and check a recipe; print the exact memory of a rank");
    add_recipe_flags(*command, args->recipe);
    command->add_option("--cluster", args->cluster,
                        "name that `lockstep clusters` lists, or a cluster file such as `lockstep bench` writes, in place of "
                        "cluster.file: compile "
                        "for its kernels and hosts, and hold the plan against its memory");
    command->add_flag("--json", args->json, "one JSON object on standard output");
    command->footer("Example: lockstep check recipes/llama3_405b.toml\n         lockstep check llama3_8b --cluster h200");
    return {.app = command, .run = [args](comm::ProcessGroup&) { return check(*args); }, .recipe = &args->recipe};
}

}  // namespace lockstep::cli
