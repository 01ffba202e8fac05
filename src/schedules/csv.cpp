#include "schedules/csv.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>

#include "base/error.h"
#include "schedules/check_schedule.h"

namespace lockstep::schedules {
namespace {

constexpr const char* kKey = "parallelism.pipeline_parallel_schedule_csv";

std::vector<std::string_view> split(std::string_view text, char at) {
    std::vector<std::string_view> out;
    for (size_t end = 0; end != std::string_view::npos;
         text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1)) {
        end = text.find(at);
        out.push_back(text.substr(0, end));
    }
    return out;
}

std::string_view trimmed(std::string_view text) {
    const auto is_edge = [](char c) { return c == ' ' || c == '\t' || c == '\r' || c == '"'; };
    while (!text.empty() && is_edge(text.front())) text.remove_prefix(1);
    while (!text.empty() && is_edge(text.back())) text.remove_suffix(1);
    return text;
}

std::optional<Action> parse_action(std::string_view text) {
    Action a;
    if (text.empty()) return a;
    const char* const end = text.data() + text.size();
    const auto [letter, stage_error] = std::from_chars(text.data(), end, a.stage);
    if (stage_error != std::errc() || letter == end || std::string_view("FBIW").find(*letter) == std::string_view::npos)
        return {};
    a.work = static_cast<Work>(*letter);
    const auto [rest, microbatch_error] = std::from_chars(letter + 1, end, a.microbatch);
    if (microbatch_error != std::errc() || rest != end) return {};
    return a;
}

Row parse_row(std::string_view line, const std::string& place) {
    Row row;
    for (const std::string_view cell : split(line, ',')) {
        const std::optional<Action> action = parse_action(trimmed(cell));
        if (!action) {
            throw UserError(
                "pipeline.csv_cell", kKey,
                fmt::format("{}: cell {} is '{}', expected stage, one of F, I, W, B, and microbatch, as in 2F0, or nothing "
                            "for an idle cell (transfers and gathers follow from these and are not in the file)",
                            place, row.size() + 1, trimmed(cell)));
        }
        row.push_back(*action);
    }
    return row;
}

}  // namespace

std::string print_csv(const Table& table) {
    std::string out;
    for (const Row& row : table.rows) {
        for (size_t i = 0; i < row.size(); ++i) out += (i == 0 ? "" : ",") + text_of(row[i]);
        out += "\n";
    }
    return out;
}

Table read_csv(std::string_view text, const CsvSource& source) {
    std::vector<std::string_view> lines = split(text, '\n');
    while (!lines.empty() && trimmed(lines.back()).empty()) lines.pop_back();
    if (static_cast<int64_t>(lines.size()) != source.ranks) {
        throw UserError(kOtherRanks, kKey,
                        fmt::format("{} has {} lines, expected one for each of the {} ranks of pipeline_parallel_degree",
                                    source.file, lines.size(), source.ranks));
    }
    Table table{0, source.microbatches, {}};
    std::set<int64_t> stages;
    for (size_t i = 0; i < lines.size(); ++i) {
        table.rows.push_back(parse_row(lines[i], fmt::format("{}:{}", source.file, i + 1)));
        for (const Action& a : table.rows.back()) {
            if (a.work != Work::Idle) stages.insert(a.stage);
        }
    }
    table.stages = static_cast<int64_t>(stages.size());  // so a gap between them makes the last ones wrong
    if (const auto wrong = check_schedule(table)) {
        throw UserError(
            "pipeline.csv_illegal", kKey,
            fmt::format("{}:{}: cell {}: {}", source.file, wrong->cell.rank + 1, wrong->cell.position + 1, wrong->message));
    }
    return table;
}

std::string draw(const Table& table) {
    size_t steps = 0;
    for (const Row& row : table.rows) steps = std::max(steps, row.size());
    const size_t digits = std::to_string(steps == 0 ? 0 : steps - 1).size();
    std::vector<size_t> widths;
    for (size_t rank = 0; rank < table.rows.size(); ++rank) {
        widths.push_back(std::max(digits + 5, fmt::format("Rank {}", rank).size()));
        for (const Action& a : table.rows[rank]) widths.back() = std::max(widths.back(), text_of(a).size());
    }
    std::string out;
    const auto add_line = [&](std::string line) {
        line.erase(line.find_last_not_of(' ') + 1);
        out += line + "\n";
    };
    std::string head(digits + 7, ' ');
    for (size_t rank = 0; rank < widths.size(); ++rank)
        head += fmt::format("{:<{}} ", fmt::format("Rank {}", rank), widths[rank]);
    add_line(head);
    for (size_t step = 0; step < steps; ++step) {
        std::string line = fmt::format("Step {:0>{}}: ", step, digits);
        for (size_t rank = 0; rank < widths.size(); ++rank) {
            const Row& row = table.rows[rank];
            line += fmt::format("{:<{}} ", step < row.size() ? text_of(row[step]) : "", widths[rank]);
        }
        add_line(line);
    }
    return out;
}

}  // namespace lockstep::schedules
