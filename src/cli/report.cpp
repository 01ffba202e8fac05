#include <fmt/format.h>

#include <fmt/ranges.h>
#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/text_file.h"
#include "cli/commands.h"

namespace lockstep::cli {
namespace {

struct ReportArgs {
    std::string folder;
    int64_t ops = 5;  // of each rank
    bool json = false;
};

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// Records by rank. A run's folder holds them in a folder of its own.
std::map<int64_t, Json> read_records(const std::string& given) {
    std::map<int64_t, Json> records;
    std::error_code error;
    for (const fs::path& folder : {fs::path(given), fs::path(given) / "comm_traces"}) {
        for (const fs::directory_entry& e : fs::directory_iterator(folder, error)) {
            if (e.path().extension() != ".json") continue;
            const Json j = Json::parse(read_text_file(e.path().string()).text, nullptr, false);
            const bool is_record =
                j.is_object() && j.contains("rank") && j.contains("ranks") && j.contains("reason") && j.contains("streams");
            if (is_record) records[j["rank"].get<int64_t>()] = j;
        }
        if (!records.empty()) return records;
    }
    throw UserError(
        "report.no_records", given,
        fmt::format("{}: holds no flight records; they are written under <job.dump_folder>/<comm.save_traces_folder> when a "
                    "rank waits longer than comm.train_timeout_seconds, or a process falls silent",
                    given));
}

// What the stream is at; null: nothing.
Json last_op(const Json& record, const char* stream) {
    const Json& ops = record["streams"][stream];
    return ops.empty() || ops.back()["op"] == "rest" ? Json() : ops.back();
}

std::string text_of(const Json& op) {
    std::string text = fmt::format("{} (layer {}, microbatch {}) {}", op.value("routine", ""), op.value("layer", 0),
                                   op.value("microbatch", 0), op.value("op", ""));
    if (op.contains("ranks")) text += fmt::format(" with ranks {}", fmt::join(op["ranks"].get<std::vector<int64_t>>(), " "));
    return text;
}

int report(const ReportArgs& args) {
    const std::map<int64_t, Json> records = read_records(args.folder);
    const Json& first = records.begin()->second;
    // Where ranks stand, with those that stand there; and whom they wait for.
    std::map<std::string, std::vector<int64_t>> waiting, others;
    std::set<int64_t> awaited;
    for (const auto& [rank, record] : records) {
        bool any = false;
        for (const char* stream : {"compute", "communication"}) {
            const Json op = last_op(record, stream);
            if (op.is_null()) continue;
            any = true;
            (op.contains("ranks") ? waiting : others)[text_of(op)].push_back(rank);
            if (op.contains("ranks")) awaited.merge(op["ranks"].get<std::set<int64_t>>());
        }
        if (!any) others["rests between two steps"].push_back(rank);
    }
    std::vector<int64_t> lost, late;
    for (int64_t r = 0; r < first["ranks"].get<int64_t>(); ++r) {
        const bool waits = std::any_of(waiting.begin(), waiting.end(), [&](const auto& w) {
            return std::find(w.second.begin(), w.second.end(), r) != w.second.end();
        });
        if (!records.contains(r)) lost.push_back(r);
        else if (awaited.contains(r) && !waits) late.push_back(r);
    }
    if (args.json) {
        Json places = Json::array();
        for (const auto* group : {&waiting, &others}) {
            for (const auto& [text, ranks] : *group)
                places.push_back({{"waits", group == &waiting}, {"at", text}, {"ranks", ranks}});
        }
        fmt::print(
            "{}\n",
            Json{{"reason", first["reason"]}, {"without_record", lost}, {"awaited_elsewhere", late}, {"places", places}}.dump());
        return kDone;
    }
    fmt::print("{}\n", first["reason"].get<std::string>());
    if (!lost.empty()) fmt::print("ranks without a record: {} (stopped, dead or cut off)\n", fmt::join(lost, " "));
    if (!late.empty()) fmt::print("ranks that others wait for, and that wait for nobody: {}\n", fmt::join(late, " "));
    for (const auto& [text, ranks] : waiting) fmt::print("waiting   {}: ranks {}\n", text, fmt::join(ranks, " "));
    for (const auto& [text, ranks] : others) fmt::print("elsewhere {}: ranks {}\n", text, fmt::join(ranks, " "));
    for (const auto& [rank, record] : records) {
        if (args.ops == 0) break;
        fmt::print("rank {} (process {}, {}, pid {})\n", rank, record["process"].get<int64_t>(),
                   record["host"].get<std::string>(), record["pid"].get<int64_t>());
        for (const char* stream : {"compute", "communication"}) {
            const Json& ops = record["streams"][stream];
            for (size_t i = ops.size() - std::min(ops.size(), static_cast<size_t>(args.ops)); i < ops.size(); ++i)
                fmt::print(
                    "  {:<13} {:>10.3f} s ago {:>12}  {}\n", stream, ops[i]["began_s_ago"].get<double>(),
                    ops[i].contains("time_s") ? fmt::format("{:.3f} ms", 1e3 * ops[i]["time_s"].get<double>()) : "still there",
                    ops[i]["op"] == "rest" ? "rest" : text_of(ops[i]));
        }
    }
    return kDone;
}

}  // namespace

Command add_report(CLI::App& app) {
    const auto args = std::make_shared<ReportArgs>();
    CLI::App* command = app.add_subcommand("report", "what the flight records of a job that hung or lost a rank say");
    command->add_option("folder", args->folder, "a run's folder, or the folder of the records")->required();
    command->add_option("--ops", args->ops, "last ops of each rank to print (default 5)")->check(CLI::NonNegativeNumber);
    command->add_flag("--json", args->json, "one JSON object on standard output");
    command->footer("Example: lockstep report outputs/demo");
    return {.app = command, .run = [args](comm::Crew&) { return report(*args); }};
}

}  // namespace lockstep::cli
