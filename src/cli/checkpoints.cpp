// A run's checkpoints: listed, verified, pruned.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/output_file.h"
#include "checkpoint/folder.h"
#include "cli/commands.h"
#include "cli/number_flags.h"
#include "compile/recipe.h"
#include "telemetry/console.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

struct CheckpointsArgs {
    std::string folder;
    bool verify = false, dry_run = false, json = false;
    int64_t keep = 0;  // --prune; 0: nothing is removed
};

// The folder of checkpoints of a run's folder, or that folder itself.
std::string root_of(const std::string& path) {
    std::vector<std::string> roots = {path, path + "/checkpoint"};
    if (const std::string file = path + "/recipe.toml"; fs::exists(file))
        roots.insert(roots.begin(), fs::path(path) / compile::Recipe::from_file(file).text("checkpoint.folder"));
    for (const std::string& root : roots) {
        if (!checkpoint::complete_steps(root).empty()) return root;
    }
    throw UserError("checkpoint.not_found", path,
                    fmt::format("{} holds no checkpoints: give a run's folder, or the folder of its checkpoints", path));
}

struct Entry {
    int64_t step = 0, bytes = 0;
    std::string folder;
    std::time_t written = 0;
    std::optional<std::string> wrong;  // nothing: it is whole
    bool model_only = false, removed = false;
};

int64_t bytes_in(const std::string& folder) {
    int64_t bytes = 0;
    std::error_code error;
    for (const fs::directory_entry& e : fs::directory_iterator(folder, error)) {
        if (e.is_regular_file(error)) bytes += static_cast<int64_t>(e.file_size(error));
    }
    return bytes;
}

std::time_t written_at(const std::string& folder) {
    std::error_code error;
    const auto time = fs::last_write_time(folder + "/manifest.json", error);
    if (error) return 0;
    return std::chrono::system_clock::to_time_t(std::chrono::file_clock::to_sys(time));
}

Entry look_at(const std::string& root, int64_t step, bool every_byte) {
    Entry e;
    e.step = step;
    e.folder = checkpoint::folder_of(root, step);
    e.bytes = bytes_in(e.folder);
    e.written = written_at(e.folder);
    e.wrong = every_byte ? checkpoint::what_is_wrong(e.folder) : checkpoint::what_is_wrong_at_first_sight(e.folder);
    if (!e.wrong) e.model_only = !checkpoint::read_manifest(e.folder).has_optimizer();
    return e;
}

// Marks all but the latest `keep` whole ones, and but the latest one that training can go on from.
void mark_old(std::vector<Entry>& entries, int64_t keep) {
    std::set<int64_t> kept;
    bool resumable = false;
    for (auto e = entries.rbegin(); e != entries.rend(); ++e) {
        if (e->wrong) continue;
        const bool counts = std::ssize(kept) < keep;
        if (counts || (!resumable && !e->model_only)) kept.insert(e->step);
        resumable |= !e->model_only && kept.contains(e->step);
    }
    if (kept.empty()) throw UserError("checkpoints.none_whole", "--prune", "no checkpoint here is whole, so none is removed");
    for (Entry& e : entries) e.removed = !kept.contains(e.step);
}

std::string size_text(int64_t bytes) {
    const auto b = static_cast<double>(bytes);
    return bytes < (1 << 20)   ? fmt::format("{:.1f} KiB", b / (1 << 10))
           : bytes < (1 << 30) ? fmt::format("{:.1f} MiB", b / (1 << 20))
                               : fmt::format("{:.1f} GiB", b / (1 << 30));
}

void print(const std::string& root, const std::vector<Entry>& entries, const CheckpointsArgs& args) {
    fmt::print("{}\n{:>10}  {:<19}  {:>10}  state\n", root, "step", "written", "size");
    for (const Entry& e : entries) {
        const std::string state = e.wrong        ? "damaged: " + telemetry::printable(*e.wrong)
                                  : e.model_only ? "whole, model only: training cannot go on from it"
                                                 : "whole";
        fmt::print("{:>10}  {:<19}  {:>10}  {}{}\n", e.step,
                   e.written ? fmt::format("{:%Y-%m-%d %H:%M:%S}", fmt::localtime(e.written)) : "?", size_text(e.bytes),
                   e.removed ? (args.dry_run ? "would be removed; " : "removed; ") : "", state);
    }
    if (!args.verify && args.keep == 0) fmt::print("Sizes were compared with the manifests. --verify reads every byte.\n");
}

Json to_json(const std::string& root, const std::vector<Entry>& entries, bool verified) {
    Json list = Json::array();
    for (const Entry& e : entries)
        list.push_back({{"step", e.step},
                        {"folder", e.folder},
                        {"written", e.written ? Json(fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(e.written))) : Json()},
                        {"bytes", e.bytes},
                        {"whole", !e.wrong},
                        {"reason", e.wrong ? Json(*e.wrong) : Json()},
                        {"model_only", e.model_only},
                        {"removed", e.removed}});
    return {{"folder", root}, {"verified", verified}, {"checkpoints", list}};
}

int checkpoints(const CheckpointsArgs& args) {
    const std::string root = root_of(args.folder);
    std::optional<FolderLock> lock;  // a running job removes checkpoints of its own
    if (args.keep > 0 && !args.dry_run) lock.emplace(root);
    const bool every_byte = args.verify || args.keep > 0;  // what is kept must be whole
    std::vector<Entry> entries;
    for (int64_t step : checkpoint::complete_steps(root)) entries.push_back(look_at(root, step, every_byte));
    if (args.keep > 0) mark_old(entries, args.keep);
    for (const Entry& e : entries) {
        if (e.removed && !args.dry_run) checkpoint::remove_checkpoint(e.folder);
    }
    if (args.json) print_json(to_json(root, entries, every_byte));
    else print(root, entries, args);
    const auto damaged = std::count_if(entries.begin(), entries.end(), [](const Entry& e) { return e.wrong && !e.removed; });
    if (!args.verify || damaged == 0) return kDone;
    telemetry::error(fmt::format("{} of {} checkpoints cannot be used [checkpoint.damaged]", damaged, entries.size()));
    return kRefused;
}

}  // namespace

Command add_checkpoints(CLI::App& app) {
    const auto args = std::make_shared<CheckpointsArgs>();
    CLI::App* command = app.add_subcommand("checkpoints", "list a run's checkpoints, verify or prune them");
    command->add_option("folder", args->folder, "a run's folder, or the folder of its checkpoints")->required();
    command->add_flag("--verify", args->verify, "read every byte and compare all checksums; exit code 1 if one is damaged");
    auto* prune =
        command
            ->add_option("--prune", args->keep,
                         "remove all but the latest KEEP whole ones, and say which; the latest one that training can go "
                         "on from always stays")
            ->check(positive_number())
            ->type_name("KEEP");
    command->add_flag("--dry-run", args->dry_run, "with --prune: say what would be removed, and remove nothing")->needs(prune);
    command->add_flag("--json", args->json, "one JSON object on standard output");
    command->footer("Example: lockstep checkpoints outputs/demo --verify");
    return {.app = command, .run = [args](comm::ProcessGroup&) { return checkpoints(*args); }};
}

}  // namespace lockstep::cli
