#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/output_file.h"
#include "base/parallel.h"
#include "base/text_file.h"
#include "calibration/report.h"
#include "cli/commands.h"
#include "telemetry/console.h"

namespace lockstep::cli {
namespace {

using Json = nlohmann::ordered_json;
using calibration::PreparedRun;

struct CalibrateArgs {
    std::string rows, folder = "clusters", cluster, out;
    std::vector<std::string> sources;
    bool fits = true, leaves_out = false, writes = false, multiplier = false, list = false, json = false;
};

// The table's runs that are asked for. Runs that name no cluster ran on --cluster.
std::vector<calibration::Run> asked_runs(const CalibrateArgs& args) {
    std::vector<calibration::Run> runs = calibration::read_runs(args.rows);
    const std::string name = std::filesystem::path(args.cluster).stem().string();
    for (calibration::Run& r : runs) {
        if (!args.cluster.empty() && (r.cluster.empty() || r.cluster == name)) r.cluster = args.cluster;
        if (r.recipe && r.cluster.empty())
            throw UserError(
                "runs.no_cluster", "--cluster",
                r.at + ": names no cluster; give --cluster FILE, the file of the machine on which the runs were measured");
    }
    std::erase_if(runs, [&](const calibration::Run& r) {
        if (!args.cluster.empty() && r.cluster != args.cluster) return true;
        return !args.sources.empty() && std::find(args.sources.begin(), args.sources.end(), r.source) == args.sources.end();
    });
    return runs;
}

std::vector<PreparedRun> prepared(const std::vector<calibration::Run>& runs, const CalibrateArgs& args) {
    std::vector<const calibration::Run*> planned;
    for (const calibration::Run& r : runs) {
        if (r.recipe) planned.push_back(&r);
    }
    const calibration::ClusterFiles files(args.folder);
    std::vector<PreparedRun> out(planned.size());
    parallel_for(planned.size(), [&](size_t i) { out[i] = calibration::prepare(*planned[i], files); });
    for (const PreparedRun& r : out) {
        if (!r.refusal.empty()) telemetry::warn(fmt::format("{} is left out: {}", r.run->at, r.refusal));
    }
    return out;
}

struct Calibrated {
    std::vector<calibration::Run> table;
    std::vector<PreparedRun> runs;
    calibration::Constants constants;
    calibration::Planned before, after;
    std::optional<calibration::Fit> fit;
    std::optional<calibration::LeftOut> left_out;
    std::vector<double> deviations;  // of the plans with the constants of the files, if nothing is fitted
};

Calibrated calibrated(const CalibrateArgs& args) {
    Calibrated c;
    c.table = asked_runs(args);
    c.runs = prepared(c.table, args);
    if (std::none_of(c.runs.begin(), c.runs.end(), [](const PreparedRun& r) { return r.is_measured(); }))
        throw UserError("runs.none", "--rows",
                        fmt::format("{}: no run that was asked for has a step time and can be planned", args.rows));
    for (const PreparedRun& r : c.runs) c.constants.add(r.sources);
    c.before.values = c.constants.values();
    c.before.ratios = calibration::ratios(c.runs, c.constants, c.before.values);
    c.after = c.before;
    const bool fits = args.fits && !args.multiplier;
    if (!args.fits) c.deviations = calibration::deviations(c.runs, c.constants, c.before, c.constants.spreads());
    if (!fits && !args.leaves_out) return c;
    const calibration::Fitting fitting(c.runs, c.constants, c.before.values);
    if (fits) {
        c.fit = fitting.fit(std::vector<bool>(c.runs.size(), true), [](int round, double cost) {
            telemetry::info(fmt::format("fit, round {}: weighted squares {:.1f}", round, cost));
        });
        c.after = {c.fit->values, fitting.ratios(c.fit->values)};
    }
    if (args.leaves_out)
        c.left_out =
            calibration::leave_sources_out(c.runs, c.constants, fitting, [](const std::string& line) { telemetry::info(line); });
    return c;
}

std::vector<calibration::FittedConstant> fitted(const Calibrated& c) {
    std::vector<calibration::FittedConstant> out;
    for (size_t k = 0; k < c.constants.size(); ++k) {
        out.push_back(c.constants[k]);
        out.back().value = c.fit->values[k];
        out.back().known.low = c.fit->low[k], out.back().known.high = c.fit->high[k], out.back().known.runs = c.fit->runs[k];
    }
    return out;
}

// Puts the fitted constants into the files that have them.
void write_constants(const Calibrated& c) {
    const std::vector<calibration::FittedConstant> constants = fitted(c);
    std::set<std::string> paths;
    for (const calibration::FittedConstant& f : constants) paths.insert(f.file);
    for (const std::string& path : paths) {
        write_whole_file(path, calibration::with_constants(read_text_file(path).text, path, constants));
        telemetry::info(path + " has new constants");
    }
    const calibration::Seen seen(c.runs, std::vector<bool>(c.runs.size(), true));
    for (const auto& [path, part] : seen.all()) write_whole_file(path, calibration::with_runs(read_text_file(path).text, part));
}

// One cluster file with all that its parts say and what the runs add.
void write_cluster(const Calibrated& c, const CalibrateArgs& args) {
    sim::Cluster cluster = c.constants.cluster(c.runs[0].sources, c.after.values);
    if (args.multiplier) cluster.measured = calibration::measured_by(c.before.ratios);
    std::set<std::string> sources;
    for (const PreparedRun& r : c.runs) {
        if (r.is_measured()) sources.insert(r.run->source);
    }
    for (sim::Part& p : cluster.parts)
        p.runs += static_cast<int64_t>(c.runs.size()), p.sources += static_cast<int64_t>(sources.size());
    write_whole_file(args.out, sim::print(cluster));
    telemetry::info(fmt::format("{} has the calibrated machine", args.out));
}

// By source, a column for each way to plan the runs.
void print_errors(const std::vector<PreparedRun>& runs, const std::vector<std::pair<std::string, std::vector<double>>>& ways) {
    std::vector<std::vector<calibration::SourceErrors>> columns;
    std::string heads = fmt::format("{:<14}{:>6}", "source", "runs");
    for (const auto& [name, ratios] : ways) {
        columns.push_back(calibration::by_source(runs, ratios));
        heads += fmt::format("{:>30}", name);
    }
    fmt::print("errors of the step time: median, 90th percentile, bias\n{}\n", heads);
    for (size_t row = 0; row < columns[0].size(); ++row) {
        std::string line = fmt::format("{:<14}{:>6}", columns[0][row].source, columns[0][row].errors.count);
        for (const auto& column : columns) {
            const calibration::Errors& e = column[row].errors;
            line += fmt::format("{:>10.1f} %{:>8.1f} %{:>+8.1f} %", 100 * e.median, 100 * e.ninetieth, 100 * e.bias);
        }
        fmt::print("{}\n", line);
    }
}

void print(const Calibrated& c, const CalibrateArgs& args) {
    for (size_t i = 0; args.list && i < c.runs.size(); ++i) {
        if (c.after.ratios[i] == 0) continue;
        const calibration::Run& r = *c.runs[i].run;
        fmt::print("{:<16} {:<18} {:<28} {:>10.4g} s measured {:>+7.1f} %\n", r.id,
                   std::filesystem::path(r.cluster).stem().string(), r.stack, r.step_time_s, 100 * (c.after.ratios[i] - 1));
    }
    if (c.fit) {
        fmt::print("constants (of a chip, a network or a stack)\n");
        for (const calibration::FittedConstant& f : fitted(c))
            fmt::print("  {:<46} {:<36}{:>11.4g}  {:>9.4g} to {:<9.4g}{:>4} runs\n", f.file, f.known.key, f.value, f.known.low,
                       f.known.high, f.known.runs);
    }
    std::vector<std::pair<std::string, std::vector<double>>> ways = {{"as the files are", c.before.ratios}};
    if (c.fit) ways.emplace_back("fitted", c.after.ratios);
    if (c.left_out) ways.emplace_back("fitted to other sources", c.left_out->ratios);
    ways.emplace_back("one utilization a chip", calibration::constant_utilization(c.runs));
    print_errors(c.runs, ways);
    if (!c.deviations.empty())
        fmt::print("{:.0f} % of the runs are in the bands of their plans\n",
                   100 * calibration::coverage(c.before.ratios, c.deviations));
    if (c.left_out)
        fmt::print("mean of the medians with constants of other sources {:.1f} %; {:.0f} % of the runs in the band\n",
                   100 * c.left_out->mean_of_medians, 100 * c.left_out->coverage);
    if (args.multiplier) {
        const sim::Measured m = calibration::measured_by(c.before.ratios);
        fmt::print("measured steps take {:.3f} times the planned ({} runs); a plan is then right within {:.0f} %\n", m.multiplier,
                   m.runs, 100 * m.spread);
    }
}

Json errors_json(const std::vector<PreparedRun>& runs, const std::vector<double>& ratios) {
    Json out = Json::array();
    for (const auto& [source, e, rank] : calibration::by_source(runs, ratios))
        out.push_back({{"source", source},
                       {"runs", e.count},
                       {"median", e.median},
                       {"ninetieth", e.ninetieth},
                       {"bias", e.bias},
                       {"rank_correlation", rank}});
    return out;
}

Json to_json(const Calibrated& c, const CalibrateArgs& args) {
    Json runs = Json::array(), left_out = Json::array(), constants = Json::array(), choices = Json::array();
    for (size_t i = 0; i < c.runs.size(); ++i) {
        const calibration::Run& r = *c.runs[i].run;
        Json row = {{"id", r.id},           {"source", r.source},          {"cluster", r.cluster},      {"stack", r.stack},
                    {"assumed", r.assumed}, {"measured_s", r.step_time_s}, {"ratio", c.after.ratios[i]}};
        if (r.memory_bytes > 0)
            row["memory_ratio"] = c.runs[i].memory_bytes / r.memory_bytes, row["memory_is_reserved"] = r.memory_is_reserved;
        if (r.out_of_memory) row["out_of_memory"] = true;
        row["fits"] = c.runs[i].fits;
        if (c.left_out) row["left_out_ratio"] = c.left_out->ratios[i], row["left_out_deviation"] = c.left_out->deviations[i];
        if (!c.deviations.empty()) row["deviation"] = c.deviations[i];
        for (const sim::Part& p : c.runs[i].parts) row["parts"].push_back(p.path.empty() ? p.name : p.path);
        runs.push_back(std::move(row));
    }
    for (const calibration::Run& r : c.table) {
        if (!r.left_out.empty()) left_out.push_back({{"id", r.id}, {"why", r.left_out}});
    }
    for (const PreparedRun& r : c.runs) {
        if (!r.refusal.empty()) left_out.push_back({{"id", r.run->id}, {"why", r.refusal}});
    }
    if (c.fit) {
        for (const calibration::FittedConstant& f : fitted(c))
            constants.push_back({{"file", f.file},
                                 {"key", f.known.key},
                                 {"value", f.value},
                                 {"low", f.known.low},
                                 {"high", f.known.high},
                                 {"runs", f.known.runs}});
    }
    for (const calibration::Choice& g : calibration::choices_of(c.runs, c.after.ratios))
        choices.push_back({{"of", g.of}, {"layouts", g.runs.size()}, {"loss", g.loss}, {"mean_loss", g.mean}});
    Json out = {{"rows", args.rows},
                {"constants", constants},
                {"one_utilization", errors_json(c.runs, calibration::constant_utilization(c.runs))},
                {"planned", errors_json(c.runs, c.after.ratios)},
                {"choices", choices},
                {"runs", runs},
                {"not_planned", left_out}};
    if (!c.deviations.empty()) out["coverage"] = calibration::coverage(c.before.ratios, c.deviations);
    if (c.left_out)
        out["left_out"] = {{"errors", errors_json(c.runs, c.left_out->ratios)},
                           {"mean_of_medians", c.left_out->mean_of_medians},
                           {"coverage", c.left_out->coverage}};
    if (args.multiplier) {
        const sim::Measured m = calibration::measured_by(c.before.ratios);
        out["measured"] = {{"multiplier", m.multiplier}, {"spread", m.spread}, {"runs", m.runs}};
    }
    return out;
}

int calibrate(const CalibrateArgs& args) {
    if (args.multiplier && args.cluster.empty())
        throw UserError("runs.no_cluster", "--cluster", "--multiplier is of one machine: give --cluster FILE");
    if (!args.out.empty() && args.cluster.empty())
        throw UserError("runs.no_cluster", "--cluster", "--out writes one machine: give --cluster FILE");
    const Calibrated c = calibrated(args);
    if (args.writes && c.fit) write_constants(c);
    if (!args.out.empty()) write_cluster(c, args);
    if (args.json) print_json(to_json(c, args));
    else print(c, args);
    return kDone;
}

}  // namespace

Command add_calibrate(CLI::App& app) {
    const auto args = std::make_shared<CalibrateArgs>();
    CLI::App* command =
        app.add_subcommand("calibrate", "hold plans against measured runs, and fit the constants of machines to them");
    command->add_option("--rows", args->rows, "CSV table of measured runs, in the form of data/published_runs.csv")->required();
    command->add_option("--cluster", args->cluster,
                        "cluster file: only runs on this machine; runs that name no cluster ran on it");
    command->add_option("--folder", args->folder, "folder of the cluster files that the table names (default: clusters)");
    command->add_option("--source", args->sources, "only runs of this source (repeatable)");
    command->add_flag("!--no-fit", args->fits, "take the constants that the files have");
    command->add_flag("--leave-out", args->leaves_out, "also plan each source with constants that are fitted to the others");
    command->add_flag("--multiplier", args->multiplier,
                      "fit no constants, but one factor to the plans of --cluster; one run is enough");
    command->add_flag("--write", args->writes, "write the fitted constants into the files that have them");
    command->add_option("--out", args->out, "write the calibrated machine of --cluster to this file");
    command->add_flag("--list", args->list, "a line for each run");
    command->add_flag("--json", args->json, "one JSON object on standard output");
    command->footer(
        "Example: lockstep calibrate --rows my_runs.csv --cluster clusters/h100.toml --multiplier --out my_machine.toml");
    return {.app = command, .run = [args](comm::ProcessGroup&) { return calibrate(*args); }};
}

}  // namespace lockstep::cli
