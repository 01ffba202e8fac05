#include "report/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "compile/effective.h"
#include "report/run_files.h"
#include "telemetry/wrap.h"

namespace lockstep::report {
namespace {

using Json = nlohmann::ordered_json;
using EffectiveKeys = std::vector<std::pair<std::string, std::string>>;

std::optional<EffectiveKeys> keys_of_run(const Json& run) {
    const std::string recipe = run["recipe"];
    if (recipe.empty()) return std::nullopt;
    try {
        return compile::effective(compile::Recipe::from_text(recipe, "recipe"));
    } catch (const std::exception&) {  // of another version, or damaged
        return std::nullopt;
    }
}

Json differing_keys(const std::vector<std::optional<EffectiveKeys>>& of_runs) {
    std::vector<std::string> names;  // in the order of the first recipe that has them
    std::vector<std::map<std::string, std::string>> values(of_runs.size());
    for (size_t i = 0; i < of_runs.size(); ++i) {
        if (!of_runs[i]) continue;
        for (const auto& [name, value] : *of_runs[i]) {
            if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
            values[i][name] = value;
        }
    }
    Json out = Json::array();
    for (const std::string& name : names) {
        if (name == "job.dump_folder") continue;
        Json row = Json::array();
        const std::string* first = nullptr;
        bool differs = false;
        for (size_t i = 0; i < of_runs.size(); ++i) {
            const auto found = values[i].find(name);
            row.push_back(found == values[i].end() ? Json() : Json(found->second));
            if (!of_runs[i]) continue;
            static const std::string kAbsent;
            const std::string& value = found == values[i].end() ? kAbsent : found->second;
            if (!first) first = &value;
            differs |= *first != value;
        }
        if (differs) out.push_back({{"key", name}, {"values", row}});
    }
    return out;
}

using Rows = std::vector<std::vector<std::string>>;

// Columns as wide as their longest cell; the first to the left, numbers to the right where `right`.
std::string aligned(const Rows& rows, bool right) {
    std::vector<int> widths;
    for (const auto& row : rows) {
        widths.resize(std::max(widths.size(), row.size()));
        for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], telemetry::columns_of(row[c]));
    }
    std::string out;
    for (const auto& row : rows) {
        std::string line;
        for (size_t c = 0; c < row.size(); ++c) {
            const std::string pad(static_cast<size_t>(widths[c] - telemetry::columns_of(row[c])), ' ');
            line += (c > 0 ? "  " : "") + (right && c > 0 ? pad + row[c] : row[c] + pad);
        }
        line.erase(line.find_last_not_of(' ') + 1);
        out += line + "\n";
    }
    return out;
}

std::string number_text(const Json& value, const char* format) {
    return value.is_number() ? fmt::format(fmt::runtime(format), value.get<double>()) : "-";
}

}  // namespace

Json comparison_of(const std::vector<Json>& runs) {
    Json summaries = Json::array(), unread = Json::array();
    std::vector<std::optional<EffectiveKeys>> keys;
    for (const Json& run : runs) {
        summaries.push_back(summary_of(run));
        keys.push_back(keys_of_run(run));
        if (!keys.back()) unread.push_back(run["folder"]);
    }
    return {{"runs", summaries}, {"keys", differing_keys(keys)}, {"unread", unread}};
}

Json comparison_page(const std::vector<Json>& runs) {
    Json out = comparison_of(runs);
    for (size_t i = 0; i < runs.size(); ++i) {
        out["runs"][i]["metrics"] = runs[i]["metrics"];
        out["runs"][i]["every"] = runs[i]["every"];
    }
    out["made"] = runs.front()["made"];
    return out;
}

std::string comparison_text(const Json& comparison) {
    Rows rows = {{"run", "status", "steps", "last loss", "best held-out", "tokens/s", "MFU", "memory"}};
    for (const Json& s : comparison["runs"]) {
        const Json& memory = s["bytes_resident"].is_null() ? s["bytes_resident_first_process"] : s["bytes_resident"];
        rows.push_back({s["folder"].get<std::string>(), s["status"].is_string() ? s["status"].get<std::string>() : "-",
                        number_text(s["steps"], "{:.0f}"), number_text(s["final_loss"], "{:.4f}"),
                        number_text(s["best_heldout_loss"], "{:.4f}"),
                        s["tokens_per_s"].is_number() ? telemetry::short_count(s["tokens_per_s"].get<double>()) : "-",
                        number_text(s["mfu_percent"], "{:.1f} %"),
                        memory.is_number_integer() ? telemetry::gib(memory.get<int64_t>()) : "-"});
    }
    std::string out = aligned(rows, true);
    for (const Json& folder : comparison["unread"])
        out += fmt::format("\nthe recipe of {} cannot be read, so its keys are not compared\n", folder.get<std::string>());
    if (comparison["keys"].empty()) return out + "\nthe recipes do not differ\n";
    rows = {{"key"}};
    for (const Json& s : comparison["runs"]) rows[0].push_back(s["folder"].get<std::string>());
    for (const Json& k : comparison["keys"]) {
        rows.push_back({k["key"].get<std::string>()});
        for (const Json& value : k["values"]) rows.back().push_back(value.is_string() ? value.get<std::string>() : "-");
    }
    return out + "\n" + aligned(rows, false);
}

}  // namespace lockstep::report
