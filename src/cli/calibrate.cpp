#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <memory>
#include <set>

#include "base/parallel.h"
#include "calibration/errors.h"
#include "calibration/fit.h"
#include "cli/commands.h"
#include "telemetry/console.h"

namespace lockstep::cli {
namespace {

using Json = nlohmann::ordered_json;
using calibration::PreparedRun;

struct CalibrateArgs {
    std::string rows, folder = "clusters", out;
    std::vector<std::string> clusters, sources;
    bool fits = true, leave_out = false, list = false, json = false;
};

std::vector<PreparedRun> prepared(const std::vector<calibration::Run>& runs, const CalibrateArgs& args) {
    const auto is_asked = [](const std::vector<std::string>& names, const std::string& name) {
        return names.empty() || std::find(names.begin(), names.end(), name) != names.end();
    };
    std::vector<const calibration::Run*> asked;
    for (const calibration::Run& r : runs) {
        if (r.recipe && is_asked(args.clusters, r.cluster) && is_asked(args.sources, r.source)) asked.push_back(&r);
    }
    const calibration::ClusterFiles files(args.folder);
    std::vector<PreparedRun> out(asked.size());
    parallel_for(asked.size(), [&](size_t i) { out[i] = calibration::prepare(*asked[i], files); });
    return out;
}

void print_errors(const char* title, const std::vector<PreparedRun>& runs, const std::vector<double>& ratios) {
    std::map<std::string, std::vector<size_t>> by_source;
    for (size_t i = 0; i < runs.size(); ++i) {
        if (ratios[i] != 0) by_source[runs[i].run->source].push_back(i);
    }
    fmt::print("{}\n  {:<14}{:>6}{:>10}{:>10}{:>10}{:>10}\n", title, "source", "runs", "median", "90th", "bias", "ranks");
    std::vector<double> all;
    const auto line = [](const std::string& name, const calibration::Errors& e, double rank) {
        fmt::print("  {:<14}{:>6}{:>8.1f} %{:>8.1f} %{:>+8.1f} %{:>10.2f}\n", name, e.count, 100 * e.median, 100 * e.ninetieth,
                   100 * e.bias, rank);
    };
    for (const auto& [source, members] : by_source) {
        std::vector<double> of, planned, measured;
        for (const size_t i : members) {
            const compile::Layout& l = runs[i].compiled.layout;
            const double each = static_cast<double>(l.ranks) / static_cast<double>(l.global_batch * l.seq_len);
            of.push_back(ratios[i]), all.push_back(ratios[i]);
            planned.push_back(ratios[i] * runs[i].run->step_time_s * each), measured.push_back(runs[i].run->step_time_s * each);
        }
        line(source, calibration::errors_of(of), calibration::rank_correlation(planned, measured));
    }
    line("all", calibration::errors_of(all), 0);
}

int calibrate(const CalibrateArgs& args) {
    const std::vector<calibration::Run> all = calibration::read_runs(args.rows);
    const std::vector<PreparedRun> runs = prepared(all, args);
    for (const PreparedRun& r : runs) {
        if (!r.refusal.empty()) telemetry::warn(fmt::format("{}: {}", r.run->at, r.refusal));
    }
    const calibration::Constants constants(runs);
    std::vector<double> values = constants.values();
    if (args.fits) {
        const std::vector<bool> used(runs.size(), true);
        const calibration::Fit fit = calibration::fit(runs, used, constants, values, [](int round, double cost) {
            telemetry::info(fmt::format("round {}: cost {:.1f}", round, cost));
        });
        values = fit.values;
        for (size_t k = 0; k < constants.size(); ++k)
            fmt::print("{:<45} {:<36} {:>10.4g}  {:>10.4g} to {:<10.4g} {:>4} runs (before {:.4g})\n", constants[k].file,
                       constants[k].known.key, fit.values[k], fit.low[k], fit.high[k], fit.runs[k], constants[k].value);
    }
    const std::vector<double> ratios = calibration::ratios(runs, constants, values);
    if (args.list) {
        for (size_t i = 0; i < runs.size(); ++i) {
            if (ratios[i] != 0)
                fmt::print("{:<16} {:<18} {:<28} tp {} pp {} dp {:<4} {:>9.4f} s {:>+7.1f} %\n", runs[i].run->id, runs[i].run->cluster,
                           runs[i].run->stack, runs[i].config.parallelism.tensor_parallel_degree,
                           runs[i].config.parallelism.pipeline_parallel_degree,
                           runs[i].config.parallelism.data_parallel_shard_degree, runs[i].run->step_time_s, 100 * (ratios[i] - 1));
        }
    }
    print_errors("constant MFU of a chip", runs, calibration::constant_utilization(runs));
    print_errors("planned", runs, ratios);
    for (const calibration::Choice& c : calibration::choices_of(runs, ratios))
        fmt::print("choice {:<70} {:>3} layouts: loss {:.1f} %, random {:.1f} %\n", c.of, c.runs.size(), 100 * c.loss, 100 * c.mean);
    return kDone;
}

}  // namespace

Command add_calibrate(CLI::App& app) {
    const auto args = std::make_shared<CalibrateArgs>();
    CLI::App* command = app.add_subcommand("calibrate", "fit the constants of cluster files to measured runs");
    command->add_option("--rows", args->rows, "CSV table of runs")->required();
    command->add_option("--folder", args->folder, "folder of the cluster files that the table names");
    command->add_option("--cluster", args->clusters, "only runs on this cluster (repeatable)");
    command->add_option("--source", args->sources, "only runs of this source (repeatable)");
    command->add_flag("!--no-fit", args->fits, "say how good the constants are that the files have");
    command->add_flag("--list", args->list, "a line for each run");
    command->footer("Example: lockstep calibrate --rows data/published_runs.csv");
    return {.app = command, .run = [args](comm::ProcessGroup&) { return calibrate(*args); }};
}

}  // namespace lockstep::cli
