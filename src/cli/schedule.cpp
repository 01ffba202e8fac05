#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text_file.h"
#include "cli/commands.h"
#include "cli/stage_json.h"
#include "schedules/csv.h"
#include "schedules/schedules.h"
#include "schedules/timeline.h"

namespace lockstep::cli {
namespace {

struct ScheduleArgs {
    std::string name, file;  // one of both; none: the names are listed
    int64_t ranks = 4, stages_per_rank = 0, microbatches = 8;
    bool csv = false, json = false;
};

using Json = nlohmann::ordered_json;

// Forward, input gradient and weight gradient take one unit each, so a whole backward takes two.
constexpr auto kUnits = [](const schedules::Action& a) -> double {
    return a.work == schedules::Work::Idle ? 0 : a.work == schedules::Work::Backward ? 2 : 1;
};

void list_names(bool json) {
    Json list = Json::array();
    for (const schedules::Schedule& s : schedules::schedules()) {
        if (json) list.push_back({{"name", s.name}, {"splits_backward", s.splits_backward}, {"help", s.help}});
        else fmt::print("{:<24} {}\n", s.name, s.help);
    }
    if (json) print_json(list);
}

schedules::Table read_table(const ScheduleArgs& args) {
    const TextFile file = read_text_file(args.file);
    if (!file.is_readable()) {
        throw UserError("schedule.unreadable", "--from",
                        fmt::format("schedule {}: cannot be read ({}); give the path of a CSV file", args.file, file.reason));
    }
    try {
        return schedules::read_csv(file.text, {args.file, args.ranks, args.microbatches});
    } catch (const UserError& e) {
        throw UserError(e.id(), e.is(schedules::kOtherRanks) ? "--ranks" : "--from", e.what());
    }
}

Json to_json(const schedules::Table& table, double span, double bubble, const schedules::InFlight& held) {
    return {{"ranks", table.rows.size()},
            {"stages", table.stages},
            {"microbatches", table.microbatches},
            {"bubble_fraction", bubble / span},
            {"in_flight_of_stage", held.of_stage},
            {"in_flight_of_rank", held.of_rank},
            {"rows", rows_json(table)}};
}

int schedule(const ScheduleArgs& args) {
    if (args.name.empty() && args.file.empty()) return list_names(args.json), kDone;
    constexpr int64_t kMostRuns = 1 << 20;  // forward passes of all ranks: more cannot be drawn
    if (args.ranks * args.microbatches * std::max<int64_t>(args.stages_per_rank, 1) > kMostRuns)
        throw UserError("schedule.too_large", "--microbatches",
                        fmt::format("--ranks {} x --microbatches {} x stages per rank: at most {} forward passes are drawn",
                                    args.ranks, args.microbatches, kMostRuns));
    const auto named = [&] {
        const schedules::Schedule& found = schedules::find_schedule(args.name);
        const int64_t usual = std::min<int64_t>(found.max_stages_per_rank, 2);  // TorchTitan's default
        const int64_t stages = args.stages_per_rank > 0 ? args.stages_per_rank : usual;
        return schedules::make_schedule(args.name, {args.ranks, stages, args.microbatches});
    };
    const schedules::Table table = args.file.empty() ? named() : read_table(args);
    if (args.csv) return fmt::print("{}", schedules::print_csv(table)), kDone;
    const schedules::Timeline timeline = schedules::play(table, kUnits);
    const double busy = *std::max_element(timeline.busy.begin(), timeline.busy.end()), span = busy + timeline.bubble;
    const schedules::InFlight held = schedules::in_flight(table);
    if (args.json) return print_json(to_json(table, span, timeline.bubble, held)), kDone;
    fmt::print("{}", schedules::draw(schedules::with_waits(table)));
    fmt::print("bubble: {:.1f} % of the busiest rank's {} units (F, I, W one each, B two)\n", 100 * timeline.bubble / span, span);
    for (size_t rank = 0; rank < held.of_rank.size(); ++rank)
        fmt::print("rank {} holds at most {} microbatches between forward and backward\n", rank, held.of_rank[rank]);
    return kDone;
}

}  // namespace

Command add_schedule(CLI::App& app) {
    const auto args = std::make_shared<ScheduleArgs>();
    CLI::App* command = app.add_subcommand("schedule", "draw and check a pipeline schedule");
    command->add_option("name", args->name, "name of a schedule: 1F1B, Interleaved1F1B, ... (default: list the names)");
    command->add_option("--from", args->file, "CSV file of torch.distributed.pipelining, instead of a name")->excludes("name");
    command->add_option("--ranks", args->ranks, "number of pipeline ranks (default 4)")->check(CLI::Range(1, 4096));
    command
        ->add_option("--stages-per-rank", args->stages_per_rank,
                     "stages per pipeline rank (default: 2 if the schedule takes several, else 1)")
        ->check(CLI::Range(1, 64));
    command->add_option("--microbatches", args->microbatches, "microbatches per step (default 8)")->check(CLI::Range(1, 65536));
    command->add_flag("--csv", args->csv, "print the table in PyTorch's format, for pipeline_parallel_schedule_csv");
    command->add_flag("--json", args->json, "one JSON object on standard output");
    command->footer("Example: lockstep schedule ZB-H1 --ranks 4 --microbatches 8");
    return {.app = command, .run = [args](comm::ProcessGroup&) { return schedule(*args); }};
}

}  // namespace lockstep::cli
