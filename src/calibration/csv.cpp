#include "calibration/csv.h"

#include <fmt/format.h>

#include "base/error.h"

namespace lockstep::calibration {

std::vector<CsvRow> read_csv(const std::string& text, const std::string& origin) {
    std::vector<CsvRow> rows;
    CsvRow row{1, {""}};
    int64_t line = 1, quoted_since = 0;  // 0: not inside quotes
    const auto end_row = [&] {
        if (row.fields.size() > 1 || !row.fields[0].empty()) rows.push_back(std::move(row));
        row = {line, {""}};
    };
    for (size_t i = 0; i < text.size(); ++i) {
        const char c = text[i];
        if (c == '\n') ++line;
        if (quoted_since > 0) {
            const bool doubled = c == '"' && i + 1 < text.size() && text[i + 1] == '"';
            if (doubled) ++i;
            if (c == '"' && !doubled) quoted_since = 0;
            else row.fields.back() += c;
        } else if (c == '"') {
            quoted_since = line;
        } else if (c == ',') {
            row.fields.emplace_back();
        } else if (c == '\n') {
            end_row();
        } else if (c != '\r') {
            row.fields.back() += c;
        }
    }
    if (quoted_since > 0)
        throw UserError("runs.syntax", "--rows",
                        fmt::format("{}, line {}: a quote is opened and not closed", origin, quoted_since));
    end_row();
    return rows;
}

}  // namespace lockstep::calibration
