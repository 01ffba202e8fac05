// `lockstep clusters`: the machines and the software whose descriptions come with the program.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/shipped.h"
#include "base/text_file.h"
#include "base/toml.h"
#include "cli/commands.h"
#include "cli/help.h"
#include "cli/terminal.h"
#include "sim/cluster.h"
#include "sim/failures.h"
#include "telemetry/wrap.h"

namespace lockstep::cli {
namespace {

using Json = nlohmann::ordered_json;

struct ClusterLine {
    std::string name, file, description, device;
    int64_t of_host = 0;  // devices
    double memory_bytes = 0, mtbf_hours = 0;
    bool declared = false;
    int64_t runs = 0;  // published ones, against which the file's constants were held

    std::string rates() const {
        return fmt::format("{}{}", declared ? "declared" : "measured",
                           runs > 0 ? ", fitted to " + telemetry::plural(runs, "run") : "");
    }
};

std::string description_of(const sim::Source& s) { return s.tables["description"].value_or(std::string()); }

ClusterLine cluster_line(const std::string& name) {
    ClusterLine line;
    line.name = name;
    const std::vector<sim::Source> sources = sim::read_sources(name, "cluster");
    const sim::Cluster c = sim::cluster_of(sources);
    for (const sim::Source& s : sources) {
        if (s.of == sim::Source::Of::Chip && !description_of(s).empty()) line.device = description_of(s);
        if (s.of != sim::Source::Of::Cluster) continue;
        line.file = s.path;
    }
    for (const sim::Part& p : c.parts) {
        if (p.kind == sim::Part::Kind::Network) line.runs = p.runs;
    }
    line.description = c.description, line.of_host = c.ranks_of_host(), line.memory_bytes = c.memory_bytes;
    line.mtbf_hours = sim::mtbf_hours_of(sources), line.declared = c.declared;
    return line;
}

struct StackLine {
    std::string name, file, description;
};

StackLine stack_line(const std::string& name) {
    const std::string file = file_or_shipped(Shipped::Stacks, name);
    const toml::table tables = parse_toml(read_text_file(file).text, file);
    return {name, file, tables["stack"]["description"].value_or(std::string())};
}

void print(const std::vector<ClusterLine>& clusters, const std::vector<StackLine>& stacks) {
    size_t name = 4, device = 6, stack = 5;
    for (const ClusterLine& c : clusters) name = std::max(name, c.name.size()), device = std::max(device, c.device.size());
    for (const StackLine& s : stacks) stack = std::max(stack, s.name.size());
    fmt::print("{:<{}}  {:<{}}  a host  {:>11}  rates\n", "name", name, "device", device, "memory");
    for (const ClusterLine& c : clusters)
        fmt::print("{:<{}}  {:<{}}  {:>6}  {:>11}  {}\n", c.name, name, c.device, device, c.of_host,
                   telemetry::gib(static_cast<int64_t>(c.memory_bytes)), c.rates());
    fmt::print("\n{:<{}}  software that ran, for --cluster.stack\n", "stack", stack);
    for (const StackLine& s : stacks) fmt::print("{:<{}}  {}\n", s.name, stack, s.description);
    fmt::print("\nA name can replace a cluster file: lockstep plan llama3_8b --cluster NAME\n");
}

int clusters(bool json) {
    std::vector<ClusterLine> lines;
    std::vector<StackLine> stacks;
    for (const std::string& name : shipped_names(Shipped::Clusters)) lines.push_back(cluster_line(name));
    for (const std::string& name : shipped_names(Shipped::Stacks)) stacks.push_back(stack_line(name));
    if (lines.empty())
        throw UserError("clusters.none", "--cluster",
                        "no cluster files came with this program: they belong into share/lockstep/clusters next to its folder "
                        "bin; give --cluster the path of a file instead");
    if (!json) {
        at_terminal_width([&] { print(lines, stacks); });
        return kDone;
    }
    Json all = Json::array(), of_stacks = Json::array();
    for (const ClusterLine& c : lines)
        all.push_back({{"name", c.name},
                       {"file", c.file},
                       {"description", c.description},
                       {"device", c.device},
                       {"devices_per_host", c.of_host},
                       {"memory_bytes", c.memory_bytes},
                       {"rates", c.declared ? "declared" : "measured"},
                       {"fitted_to_runs", c.runs},
                       {"mtbf_hours", c.mtbf_hours > 0 ? Json(c.mtbf_hours) : Json(nullptr)}});
    for (const StackLine& s : stacks) of_stacks.push_back({{"name", s.name}, {"file", s.file}, {"description", s.description}});
    print_json(Json{{"clusters", all}, {"stacks", of_stacks}});
    return kDone;
}

int print_cluster_keys(bool json) {
    Json all = Json::array();
    std::string table;
    for (const sim::ClusterKey& k : sim::cluster_keys()) {
        if (json) {
            all.push_back({{"table", k.table}, {"key", k.key}, {"values", k.values}, {"help", k.help}});
            continue;
        }
        if (k.table != table) fmt::print("{}{}\n", table.empty() ? "" : "\n", k.table);
        table = k.table;
        for (const std::string& line : telemetry::wrap(fmt::format("    {} ({}): {}", k.key, k.values, k.help), output_columns()))
            fmt::print("{}\n", line);
    }
    if (json) print_json(all);
    return kDone;
}

}  // namespace

Command add_clusters(CLI::App& app) {
    const auto json = std::make_shared<bool>(false), list_keys = std::make_shared<bool>(false);
    CLI::App* command =
        app.add_subcommand("clusters", "list the machines and the software that --cluster and cluster.stack know by name");
    command->add_flag("--keys", *list_keys, "the keys of a cluster file and of a stack's file, their values and their meaning");
    command->add_flag("--json", *json, "one JSON object on standard output; with --keys an array");
    command->footer("Example: lockstep clusters");
    return {.app = command,
            .run = [json, list_keys](comm::ProcessGroup&) { return *list_keys ? print_cluster_keys(*json) : clusters(*json); }};
}

}  // namespace lockstep::cli
