#include "report/run_files.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/json.h"
#include "base/output_file.h"
#include "base/text_file.h"
#include "checkpoint/folder.h"
#include "compile/recipe.h"
#include "telemetry/console.h"
#include "telemetry/wrap.h"

namespace lockstep::report {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char *kNoEnd = "no end recorded", *kRefused = "refused";
constexpr size_t kMostPoints = 4000;  // of a curve in a page
constexpr std::array<std::pair<const char*, const char*>, 10> kColumns = {{{"step", "step"},
                                                                           {"loss", "loss_metrics/global_avg_loss"},
                                                                           {"heldout", "validation_metrics/loss"},
                                                                           {"grad_norm", "grad_norm"},
                                                                           {"lr", "lr"},
                                                                           {"tokens", "n_tokens_seen"},
                                                                           {"tokens_per_s", "tokens_per_s"},
                                                                           {"step_time", "time_metrics/end_to_end(s)"},
                                                                           {"mfu", "mfu(%)"},
                                                                           {"resident", "memory/resident(GiB)"}}};

// A file of a run's folder; empty, with a warning, where it is there and cannot be read.
std::string text_of_file(const std::string& path) {
    const TextFile file = read_text_file(path, Pipes::Refused);
    std::error_code ignored;
    if (!file.is_readable() && fs::exists(path, ignored)) telemetry::warn(fmt::format("{} is left out: {}", path, file.reason));
    return file.text;
}

// The objects of a file of JSON lines that `f` takes.
void for_each_line(std::string_view text, const std::function<void(Json)>& f) {
    for (size_t begin = 0; begin < text.size();) {
        const size_t end = std::min(text.find('\n', begin), text.size());
        Json j = json_or_discarded<Json>(text.substr(begin, end - begin));
        if (j.is_object()) f(std::move(j));
        begin = end + 1;
    }
}

bool is_step(const Json& line) {
    return line.contains("step") && line["step"].is_number_integer() && line["step"].get<double>() >= 0;
}

void add_step(std::vector<Json>& lines, Json line) {
    while (!lines.empty() && lines.back()["step"] >= line["step"]) lines.pop_back();
    lines.push_back(std::move(line));
}

std::vector<Json> metrics_lines(std::string_view text) {
    std::vector<Json> lines;
    for_each_line(text, [&](Json line) {
        if (is_step(line)) add_step(lines, std::move(line));
    });
    return lines;
}

// The data set of a key such as "validation_metrics/books/loss"; empty: it is no such key.
std::string data_set_of(const std::string& key) {
    constexpr std::string_view kBegin = "validation_metrics/", kEnd = "/loss";
    const bool is_one = key.size() > kBegin.size() + kEnd.size() && key.starts_with(kBegin) && key.ends_with(kEnd);
    return is_one ? key.substr(kBegin.size(), key.size() - kBegin.size() - kEnd.size()) : "";
}

// Every n-th line, the last one and those with a validation.
Json columns_of(const std::vector<Json>& lines, size_t every) {
    Json out;
    for (const auto& [name, key] : kColumns) out[name] = Json::array();
    out["heldout_of"] = Json::object();  // by data set: [[step, loss]]
    for (const Json& line : lines) {
        for (const auto& [key, value] : line.items()) {
            const std::string set = data_set_of(key);
            if (!set.empty() && value.is_number()) out["heldout_of"][set].push_back({line["step"], value});
        }
    }
    for (size_t i = 0; i < lines.size(); ++i) {
        if (i % every != 0 && i + 1 != lines.size() && !lines[i].contains("validation_metrics/loss")) continue;
        for (const auto& [name, key] : kColumns) {
            const bool there = lines[i].contains(key) && lines[i][key].is_number();
            out[name].push_back(there ? lines[i][key] : Json());
        }
    }
    return out;
}

Json checkpoints_of(const std::string& folder, const std::string& recipe) {
    std::string name = "checkpoint";
    try {
        name = compile::Recipe::from_text(recipe, "recipe").text("checkpoint.folder");
    } catch (const std::exception&) {  // of another version, or damaged: the usual name
    }
    const std::string root = fs::path(folder) / name;
    Json out = Json::array();
    for (const int64_t step : checkpoint::complete_steps(root)) {
        const std::string path = checkpoint::folder_of(root, step);
        int64_t bytes = 0;
        std::error_code error;
        for (const fs::directory_entry& e : fs::recursive_directory_iterator(path, error))
            if (e.is_regular_file(error)) bytes += static_cast<int64_t>(e.file_size(error));
        out.push_back({{"step", step},
                       {"folder", path},
                       {"bytes", bytes},
                       {"has_optimizer", fs::exists(path + "/" + checkpoint::kOptimizerFile, error)}});
    }
    return out;
}

// j[a][b], or null.
Json at(const Json& j, const char* a, const char* b = nullptr) {
    if (!j.is_object() || !j.contains(a)) return nullptr;
    return b ? at(j[a], b) : j[a];
}

// A start that was refused is none, and leaves the end that the run had before. Older versions wrote it as an end without a
// start.
void add_event(Json& events, Json line) {
    const auto is_last = [&](const char* name) { return !events.empty() && events.back()["event"] == name; };
    const bool is_stray = line["event"] == "end" && at(line, "reason") == "failed" && (is_last("end") || is_last("refused"));
    if (is_stray) line["event"] = "refused";
    if (line["event"] == "refused" && is_last("start")) events.erase(events.size() - 1);
    events.push_back(std::move(line));
}

Json last_known(const Json& column) {
    for (auto value = column.rbegin(); value != column.rend(); ++value)
        if (!value->is_null()) return *value;
    return nullptr;
}

// While a run goes on, its log knows the memory of one process.
Json bytes_of_gib(const Json& gib) {
    if (!gib.is_number() || !(gib.get<double>() >= 0) || gib.get<double>() > 1e9) return nullptr;
    return static_cast<int64_t>(gib.get<double>() * (1 << 30));
}

}  // namespace

bool is_run(const std::string& folder) {
    return fs::is_regular_file(folder + "/metrics.jsonl") || fs::is_regular_file(folder + "/events.jsonl");
}

bool may_still_run(const std::string& folder) {
    long pid = 0;
    char host[256] = "", own[256] = "";
    const std::string owner = read_text_file(folder + "/" + std::string(FolderLock::kFile), Pipes::Refused).text;
    if (std::sscanf(owner.c_str(), "process %ld on %255s", &pid, host) != 2 || pid < 1) return false;
    gethostname(own, sizeof own - 1);
    return std::string_view(host) != own || ::kill(static_cast<pid_t>(pid), 0) == 0 || errno == EPERM;
}

std::vector<Json> step_lines(const std::string& file, const std::function<bool(const Json&)>& is_line) {
    std::vector<Json> lines;
    std::vector<std::string> damaged;
    constexpr size_t kNamed = 5;
    size_t number = 0, count = 0;
    const std::string text = text_of_file(file);
    for (size_t begin = 0; begin < text.size();) {
        const size_t end = std::min(text.find('\n', begin), text.size());
        const std::string_view line = std::string_view(text).substr(begin, end - begin);
        begin = end + 1, ++number;
        if (line.empty()) continue;
        Json j = json_or_discarded<Json>(line);
        if (j.is_object() && is_step(j) && is_line(j)) add_step(lines, std::move(j));
        else if (++count <= kNamed) damaged.push_back(std::to_string(number));
    }
    if (count > kNamed) damaged.push_back(fmt::format("{} more", count - kNamed));
    if (count > 0)
        telemetry::warn(fmt::format("{}: {} {}: left out, as a run writes no such line", file, count == 1 ? "line" : "lines",
                                    fmt::join(damaged, ", ")));
    return lines;
}

Json read_run(const std::string& folder) {
    const std::vector<Json> lines = metrics_lines(text_of_file(folder + "/metrics.jsonl"));
    const size_t every = lines.size() / kMostPoints + 1;
    Json events = Json::array(), samples = Json::array();
    std::string recipe = text_of_file(folder + "/recipe.toml");
    for_each_line(text_of_file(folder + "/events.jsonl"), [&](Json line) {
        const bool is_event = is_step(line) && at(line, "event").is_string() && at(line, "time").is_string();
        if (is_event) add_event(events, std::move(line));
    });
    for (const Json& e : events) {
        if (e["event"] == "start" && at(e, "recipe").is_string()) recipe = e["recipe"];
    }
    for_each_line(text_of_file(folder + "/samples.jsonl"), [&](Json line) {
        if (at(line, "prompt").is_string() && at(line, "text").is_string()) samples.push_back(std::move(line));
    });
    return {{"folder", folder},
            {"made", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)))},
            {"every", every},
            {"recipe", recipe},
            {"metrics", columns_of(lines, every)},
            {"events", events},
            {"checkpoints", checkpoints_of(folder, recipe)},
            {"samples", samples}};
}

std::map<std::string, std::vector<double>> metrics_columns(const std::string& path) {
    const fs::path file = fs::is_directory(path) ? fs::path(path) / "metrics.jsonl" : fs::path(path);
    const TextFile text = read_text_file(file);
    if (!text.is_readable())
        throw UserError("metrics.cannot_read", path,
                        fmt::format("{}: cannot be read: give the metrics.jsonl of a run, or its job.dump_folder ({})",
                                    file.string(), text.reason));
    const std::vector<Json> lines = metrics_lines(text.text);
    std::map<std::string, std::vector<double>> columns = {{"step", std::vector<double>(lines.size())}};
    for (size_t i = 0; i < lines.size(); ++i) {
        for (const auto& [key, value] : lines[i].items()) {
            if (!value.is_number()) continue;
            auto& column = columns.try_emplace(key, lines.size(), std::nan("")).first->second;
            column[i] = value.get<double>();
        }
    }
    return columns;
}

Json summary_of(const Json& run) {
    const Json& m = run["metrics"];
    Json start, end, best, best_step, refusal;
    int64_t starts = 0, not_counted = 0;
    for (const Json& e : run["events"]) {
        if (e["event"] == "start") start = e, end = refusal = nullptr, ++starts;
        if (e["event"] == "refused" && start.is_null()) refusal = e;
        if (e["event"] == "end") end = e;
        if (e["event"] == "not_counted") ++not_counted;
    }
    for (size_t i = 0; i < m["heldout"].size(); ++i) {
        const Json& loss = m["heldout"][i];
        if (!loss.is_null() && (best.is_null() || loss < best)) best = loss, best_step = m["step"][i];
    }
    Json of_sets = Json::object();
    for (const auto& [name, points] : m["heldout_of"].items()) of_sets[name] = points.back()[1];
    const Json measured = at(end, "summary");
    // Of the last start's own steps; what took none measured nothing.
    const auto positive = [&](const char* name) {
        const Json value = at(measured, name);
        return value.is_number() && value.get<double>() > 0 ? value : Json();
    };
    const auto known_or = [](const Json& value, const Json& other) { return value.is_null() ? other : value; };
    return {{"folder", run["folder"]},
            {"status", !end.is_null() ? at(end, "reason") : Json(refusal.is_null() ? kNoEnd : kRefused)},
            {"refusal", at(refusal, "text")},  // of a run that never began
            {"steps", last_known(m["step"])},
            {"of_steps", at(start, "steps")},
            {"final_loss", last_known(m["loss"])},
            {"best_heldout_loss", best},
            {"best_heldout_step", best_step},
            {"last_heldout_loss_of", of_sets},
            {"tokens_seen", last_known(m["tokens"])},
            {"tokens_per_s", known_or(positive("tokens_per_s"), last_known(m["tokens_per_s"]))},
            {"step_time_s", known_or(positive("step_time_s"), last_known(m["step_time"]))},
            {"mfu_percent", last_known(m["mfu"])},
            {"planned_step_time_s", at(start, "plan", "step_time_s")},
            {"bytes_planned", at(start, "plan", "bytes_of_all_ranks")},
            {"bytes_resident", at(measured, "peak_bytes_resident")},
            {"bytes_resident_first_process", bytes_of_gib(last_known(m["resident"]))},
            {"starts", starts},
            {"not_counted", not_counted},
            {"checkpoints", run["checkpoints"].size()}};
}

bool has_end(const Json& summary) { return summary["status"] != kNoEnd; }

namespace {

// "3 of 6"; a start may ask for fewer steps than its run has done.
std::string steps_text(const Json& s) {
    const auto text = [](const Json& x) { return x.is_number() ? fmt::format("{:.0f}", x.get<double>()) : std::string("-"); };
    const Json &done = s["steps"], &asked = s["of_steps"];
    if (done.is_number() && asked.is_number() && done.get<double>() > asked.get<double>())
        return fmt::format("{} (the last start asked for {})", text(done), text(asked));
    return asked.is_number() ? fmt::format("{} of {}", text(done), text(asked)) : text(done);
}

}  // namespace

std::string progress_text(const Json& s) {
    const auto text = [&](const char* key, auto with) {
        return s[key].is_number() ? with(s[key].template get<double>()) : std::string("-");
    };
    const std::string heldout =
        s["best_heldout_loss"].is_number() ? fmt::format("  best held-out {:.4f}", s["best_heldout_loss"].get<double>()) : "";
    return fmt::format("step {}  loss {}  {} tokens/s{}", steps_text(s),
                       text("final_loss", [](double x) { return fmt::format("{:.4f}", x); }),
                       text("tokens_per_s", [](double x) { return telemetry::short_count(x); }), heldout);
}

std::string summary_text(const Json& s) {
    std::string out;
    const auto number = [&](const char* key) { return s[key].is_number() ? std::optional(s[key].get<double>()) : std::nullopt; };
    const auto line = [&](const char* name, const std::string& text) { out += fmt::format("{:<22}{}\n", name, text); };
    const auto bytes = [&](const char* key) { return number(key) ? telemetry::gib(static_cast<int64_t>(*number(key))) : "-"; };
    const auto compared = [&](const char* planned, const char* measured) {
        const auto p = number(planned), x = number(measured);
        return p && x && *p > 0 ? fmt::format(" ({:+.1f} %)", 100 * (*x / *p - 1)) : "";
    };
    line("run", s["folder"].get<std::string>());
    line("status", s["status"].is_string() ? s["status"].get<std::string>() : "-");
    if (s["refusal"].is_string()) line("refused for", s["refusal"].get<std::string>());
    if (number("steps")) line("steps", steps_text(s));
    if (number("final_loss")) line("last training loss", fmt::format("{:.4f}", *number("final_loss")));
    if (number("best_heldout_loss"))
        line("best held-out loss", fmt::format("{:.4f} at step {:.0f}, perplexity {:.4g}", *number("best_heldout_loss"),
                                               number("best_heldout_step").value_or(0), std::exp(*number("best_heldout_loss"))));
    for (const auto& [name, loss] : s["last_heldout_loss_of"].items())
        line("last held-out loss", fmt::format("{:.4f} of {}", loss.get<double>(), name));
    if (number("tokens_seen")) line("tokens seen", telemetry::grouped(static_cast<int64_t>(*number("tokens_seen"))));
    if (number("tokens_per_s")) line("tokens a second", telemetry::short_count(*number("tokens_per_s")));
    if (number("step_time_s"))
        line("step time",
             fmt::format("measured {:.4g} s{}", *number("step_time_s"),
                         number("planned_step_time_s") ? fmt::format(", planned {:.4g} s{}", *number("planned_step_time_s"),
                                                                     compared("planned_step_time_s", "step_time_s"))
                                                       : ""));
    if (number("mfu_percent")) line("MFU", fmt::format("{:.1f} %", *number("mfu_percent")));
    const bool of_all = number("bytes_resident").has_value(), of_one = !of_all && number("bytes_resident_first_process");
    if (number("bytes_planned"))
        line("memory of all ranks",
             fmt::format("resident {}, planned {}{}",
                         of_one ? bytes("bytes_resident_first_process") + " in the first process" : bytes("bytes_resident"),
                         bytes("bytes_planned"), compared("bytes_planned", "bytes_resident")));
    line("starts", json_text(s["starts"]));
    line("steps not counted", json_text(s["not_counted"]));
    line("checkpoints", json_text(s["checkpoints"]));
    return out;
}

}  // namespace lockstep::report
