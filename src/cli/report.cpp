#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/number_flags.h"
#include "cli/page_file.h"
#include "report/compare.h"
#include "report/flight_records.h"
#include "report/float8_shares.h"
#include "report/run_files.h"
#include "telemetry/console.h"

namespace lockstep::cli {
namespace {

struct ReportArgs {
    std::vector<std::string> folders;
    std::string html, svg;
    int64_t ops = 5;  // of each rank
    bool json = false, watch = false;
};

using Json = nlohmann::ordered_json;

void require_run_in(const std::string& folder) {
    if (report::is_run(folder)) return;
    throw UserError("report.no_run", folder,
                    fmt::format("{}: holds no run: give the job.dump_folder of `lockstep train`, which has metrics.jsonl and "
                                "events.jsonl",
                                folder));
}

// What a page of a run shows.
Json with_float8(Json run, const Json& shares) {
    run["float8"] = shares;
    return run;
}

int report_on_one(const ReportArgs& args) {
    const std::string& folder = args.folders[0];
    const bool has_run = report::is_run(folder), pictures = !args.html.empty() || !args.svg.empty();
    const report::FlightRecords records = report::read_flight_records(folder);
    if (pictures) require_run_in(folder);
    if (!has_run && records.empty())
        throw UserError("report.no_records", folder,
                        fmt::format("{}: holds neither a run (metrics.jsonl, events.jsonl) nor flight records; those are written "
                                    "under <job.dump_folder>/<comm.save_traces_folder> when a rank waits longer than "
                                    "comm.train_timeout_seconds, or a process falls silent",
                                    folder));
    const Json run = has_run ? report::read_run(folder) : Json();
    Json float8 = report::float8_shares_of(folder);
    if (PageFile page(args.html, report::Page::Run); page) page.write(with_float8(run, float8));
    if (!args.svg.empty()) write_text_file(args.svg, report::loss_picture(run));
    if (args.json) {
        Json out = records.empty() ? Json::object() : report::to_json(records);
        if (has_run) out["run"] = report::summary_of(run);
        if (!float8.is_null()) out["float8"] = std::move(float8);
        print_json(out);
        return kDone;
    }
    if (pictures) return kDone;
    if (has_run) fmt::print("{}", report::summary_text(report::summary_of(run)));
    if (!float8.is_null()) fmt::print("\n{}", report::float8_text(float8));
    if (!records.empty()) {
        if (has_run) fmt::print("\nflight records:\n");
        fmt::print("{}", report::text_of(records, args.ops));
    }
    return kDone;
}

int compare_runs(const ReportArgs& args) {
    std::vector<Json> runs;
    for (const std::string& folder : args.folders) require_run_in(folder);
    for (const std::string& folder : args.folders) runs.push_back(report::read_run(folder));
    if (PageFile page(args.html, report::Page::Compare); page) page.write(report::comparison_page(runs));
    if (!args.svg.empty()) write_text_file(args.svg, report::loss_picture(runs));
    const Json comparison = report::comparison_of(runs);
    if (args.json) print_json(comparison);
    else if (args.html.empty() && args.svg.empty()) fmt::print("{}", report::comparison_text(comparison));
    return kDone;
}

// How much the files of a run hold: what is unchanged need not be read again.
std::uintmax_t bytes_of_logs(const std::string& folder) {
    std::uintmax_t bytes = 0;
    for (const char* name : {"/metrics.jsonl", "/events.jsonl"}) {
        std::error_code ignored;
        const std::uintmax_t of_file = std::filesystem::file_size(folder + name, ignored);
        if (!ignored) bytes += of_file;
    }
    return bytes;
}

// Says what is new until the run ends, and then all.
int watch_run(const ReportArgs& args) {
    constexpr auto kLookAgain = std::chrono::milliseconds(500);
    const std::string& folder = args.folders[0];
    require_run_in(folder);
    for (std::optional<std::uintmax_t> seen;; std::this_thread::sleep_for(kLookAgain)) {
        const bool may_run = report::may_still_run(folder);  // before the files: it may end in between
        const std::uintmax_t bytes = bytes_of_logs(folder);
        if (seen == bytes && may_run) continue;
        const Json run = report::read_run(folder), summary = report::summary_of(run);
        const bool is_new = seen != bytes;
        seen = bytes;
        if (is_new && !args.html.empty())
            write_whole_file(args.html, report::page_of(report::Page::Run, with_float8(run, report::float8_shares_of(folder))));
        if (is_new && args.json) print_json(summary);
        const bool ends = report::has_end(summary) || !may_run;
        if (is_new && !args.json && !ends) fmt::print("{}\n", report::progress_text(summary));
        std::fflush(stdout);
        if (!ends) continue;
        if (!args.json) fmt::print("{}", report::summary_text(summary));
        return kDone;
    }
}

int report(const ReportArgs& args) {
    if (args.watch && (args.folders.size() > 1 || !args.svg.empty()))
        throw UserError("report.watch", "--watch",
                        args.folders.size() > 1 ? "--watch follows one run, and several folders were given: name one"
                                                : "--watch writes no picture: leave --svg out, or use --html");
    if (args.watch) return watch_run(args);
    return args.folders.size() > 1 ? compare_runs(args) : report_on_one(args);
}

}  // namespace

Command add_report(CLI::App& app) {
    const auto args = std::make_shared<ReportArgs>();
    CLI::App* command = app.add_subcommand(
        "report", "summarize a run as text, page or picture; compare several; read the flight records of a job that hung");
    command
        ->add_option("folder", args->folders,
                     "a run's folder, or a folder of flight records; of several runs: what became of each, and the keys in which "
                     "their recipes differ")
        ->required();
    command->add_option("--html", args->html, "file for a page with curves, plan, recipe, checkpoints and events");
    command->add_option("--svg", args->svg, "file for a picture of the loss");
    command->add_option("--ops", args->ops, "last ops of each rank to print from flight records (default 5)")
        ->check(nonnegative_number());
    command->add_flag("--watch", args->watch,
                      "go on until the run ends: a line, or with --json an object, whenever something was logged; --html is "
                      "written again each time");
    command->add_flag("--json", args->json, "one JSON object on standard output");
    command->footer("Example: lockstep report outputs/demo --html demo.html");
    return {.app = command, .run = [args](comm::ProcessGroup&) { return report(*args); }};
}

}  // namespace lockstep::cli
