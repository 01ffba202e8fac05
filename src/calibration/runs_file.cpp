#include "calibration/runs_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <set>

#include "base/error.h"
#include "base/nearest.h"
#include "base/text_file.h"
#include "calibration/csv.h"

namespace lockstep::calibration {
namespace {

const std::vector<std::string> kRead = {"id",        "cluster",       "stack",   "step_time_s", "memory_gib",
                                        "memory_is", "out_of_memory", "assumed", "left_out"};
// Only for the reader of the table.
const std::vector<std::string> kNoted = {"source",  "status",  "system",  "chip", "devices",
                                         "trained", "printed", "counted", "notes"};

bool is_in(const std::vector<std::string>& names, const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
}

class Table {
public:
    Table(const std::string& path, std::vector<CsvRow> rows) : path_(path), rows_(std::move(rows)) {
        if (rows_.empty()) refuse(1, "has no header; its first line names the columns");
        std::vector<std::string> known = compile::key_names();
        known.insert(known.end(), kRead.begin(), kRead.end());
        known.insert(known.end(), kNoted.begin(), kNoted.end());
        std::set<std::string> seen;
        for (const std::string& name : header()) {
            if (!seen.insert(name).second) refuse(rows_[0].line, fmt::format("has two columns {}", name));
            if (is_in(known, name)) continue;
            refuse(rows_[0].line,
                   fmt::format("has a column {} that is neither one of runs nor a key of a recipe; the nearest is {}", name,
                               nearest_key(name, known)));
        }
        if (!seen.contains("id") || !seen.contains("step_time_s")) refuse(rows_[0].line, "needs the columns id and step_time_s");
    }

    std::vector<Run> runs() const {
        std::vector<Run> out;
        std::set<std::string> ids;
        for (size_t i = 1; i < rows_.size(); ++i) {
            out.push_back(run(rows_[i]));
            if (!ids.insert(out.back().id).second) refuse(rows_[i].line, fmt::format("has a second run {}", out.back().id));
        }
        return out;
    }

private:
    const std::vector<std::string>& header() const { return rows_[0].fields; }

    [[noreturn]] void refuse(int64_t line, const std::string& what) const {
        throw UserError("runs.table", "--rows", fmt::format("{}, line {}: the table {}", path_, line, what));
    }

    double number(const CsvRow& row, const std::string& column, const std::string& text) const {
        if (text.empty()) return 0;
        double value = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        if (error != std::errc() || end != text.data() + text.size() || !(value > 0) || value > 1e15)
            throw UserError(
                "runs.value", column,
                fmt::format("{}, line {}: {} = {}: give a number above 0, or nothing", path_, row.line, column, text));
        return value;
    }

    Run run(const CsvRow& row) const {
        if (row.fields.size() != header().size())
            refuse(row.line, fmt::format("has {} columns, and this line {}", header().size(), row.fields.size()));
        Run r;
        compile::Recipe recipe = compile::Recipe::from_text("", path_);
        for (size_t i = 0; i < row.fields.size(); ++i) {
            const std::string &name = header()[i], &text = row.fields[i];
            if (name == "id") r.id = text;
            else if (name == "cluster") r.cluster = text;
            else if (name == "stack") r.stack = text;
            else if (name == "step_time_s") r.step_time_s = number(row, name, text);
            else if (name == "memory_gib") r.memory_bytes = number(row, name, text) * (1 << 30);
            else if (name == "memory_is") r.memory_is_reserved = text == "reserved";
            else if (name == "out_of_memory") r.out_of_memory = !text.empty();
            else if (name == "assumed") r.assumed = text;
            else if (name == "left_out") r.left_out = text;
            else if (!text.empty() && !is_in(kNoted, name)) set(recipe, row, name, text);
        }
        if (r.id.empty()) refuse(row.line, "has a run without an id");
        r.source = r.id.substr(0, r.id.rfind('-'));
        r.at = fmt::format("{}, line {} ({})", path_, row.line, r.id);
        if (!r.left_out.empty()) return r;
        recipe.set("training.dataset", "synthetic");
        r.recipe = std::move(recipe);
        return r;
    }

    void set(compile::Recipe& recipe, const CsvRow& row, const std::string& key, const std::string& text) const {
        try {
            recipe.set(key, text);
        } catch (const UserError& e) {
            throw UserError(e.id(), key, fmt::format("{}, line {}: {}", path_, row.line, e.what()));
        }
    }

    const std::string path_;
    const std::vector<CsvRow> rows_;
};

}  // namespace

std::vector<Run> read_runs(const std::string& path) {
    const TextFile file = read_text_file(path);
    if (!file.is_readable())
        throw UserError("runs.cannot_read", "--rows",
                        fmt::format("--rows {}: cannot be read ({}); give a CSV table of runs, such as data/published_runs.csv",
                                    path, file.reason));
    return Table(path, read_csv(file.text, path)).runs();
}

}  // namespace lockstep::calibration
