// Comma-separated values (RFC 4180): quoted fields, doubled quotes, line breaks inside quotes. Own reader, of some twenty
// lines: the packaged one (libcsv) is under the LGPL and would have to be bundled with the Python wheel.
#pragma once

#include <string>
#include <vector>

namespace lockstep::calibration {

struct CsvRow {
    int64_t line = 0;  // where it begins, from 1
    std::vector<std::string> fields;
};
// Empty lines are left out. UserError runs.syntax: a quote is not closed. `origin`: the file, for messages.
std::vector<CsvRow> read_csv(const std::string& text, const std::string& origin);

}  // namespace lockstep::calibration
