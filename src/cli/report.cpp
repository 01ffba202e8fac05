#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/number_flags.h"
#include "cli/page_file.h"
#include "report/flight_records.h"
#include "report/run_files.h"
#include "telemetry/console.h"

namespace lockstep::cli {
namespace {

struct ReportArgs {
    std::string folder, html, svg;
    int64_t ops = 5;  // of each rank
    bool json = false;
};

using Json = nlohmann::ordered_json;

int report(const ReportArgs& args) {
    const bool has_run = report::is_run(args.folder), pictures = !args.html.empty() || !args.svg.empty();
    const report::FlightRecords records = report::read_flight_records(args.folder);
    if (!has_run && pictures)
        throw UserError("report.no_run", args.folder,
                        fmt::format("{}: holds no run: give the job.dump_folder of `lockstep train`, which has metrics.jsonl and "
                                    "events.jsonl",
                                    args.folder));
    if (!has_run && records.empty())
        throw UserError("report.no_records", args.folder,
                        fmt::format("{}: holds neither a run (metrics.jsonl, events.jsonl) nor flight records; those are written "
                                    "under <job.dump_folder>/<comm.save_traces_folder> when a rank waits longer than "
                                    "comm.train_timeout_seconds, or a process falls silent",
                                    args.folder));
    const Json run = has_run ? report::read_run(args.folder) : Json();
    if (PageFile page(args.html, report::Page::Run); page) page.write(run);
    if (!args.svg.empty()) write_text_file(args.svg, report::loss_picture(run));
    if (args.json) {
        Json out = records.empty() ? Json::object() : report::to_json(records);
        if (has_run) out["run"] = report::summary_of(run);
        print_json(out);
        return kDone;
    }
    if (pictures) return kDone;
    if (has_run) fmt::print("{}", report::summary_text(report::summary_of(run)));
    if (!records.empty()) {
        if (has_run) fmt::print("\nflight records:\n");
        fmt::print("{}", report::text_of(records, args.ops));
    }
    return kDone;
}

}  // namespace

Command add_report(CLI::App& app) {
    const auto args = std::make_shared<ReportArgs>();
    CLI::App* command =
        app.add_subcommand("report", "summarize a run as text, page or picture; read the flight records of a job that hung");
    command->add_option("folder", args->folder, "a run's folder, or a folder of flight records")->required();
    command->add_option("--html", args->html, "file for a page with curves, plan, recipe, checkpoints and events");
    command->add_option("--svg", args->svg, "file for a picture of the loss");
    command->add_option("--ops", args->ops, "last ops of each rank to print from flight records (default 5)")
        ->check(nonnegative_number());
    command->add_flag("--json", args->json, "one JSON object on standard output");
    command->footer("Example: lockstep report outputs/demo --html demo.html");
    return {.app = command, .run = [args](comm::ProcessGroup&) { return report(*args); }};
}

}  // namespace lockstep::cli
