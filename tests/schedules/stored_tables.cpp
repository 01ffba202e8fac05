#include "tests/schedules/stored_tables.h"
#include "tests/paths.h"

#include <fmt/format.h>

#include <fstream>
#include <sstream>

namespace lockstep::testing {
namespace {

void read_rows(std::istream& in, StoredTable& table) {
    for (std::string line; std::getline(in, line) && !line.empty();) {
        if (line == "refused") {
            table.refused = true;
        } else if (line.rfind("in_flight", 0) == 0) {
            std::istringstream counts(line.substr(9));
            for (int64_t n; counts >> n;) table.in_flight.push_back(n);
        } else {
            table.csv += line + "\n";
        }
    }
}

// Without the blanks that PyTorch leaves at the ends of lines, and without its last empty line.
std::string read_drawing(std::istream& in) {
    std::string text;
    for (std::string line; std::getline(in, line) && line != ".";) {
        line.erase(line.find_last_not_of(' ') + 1);
        if (!line.empty()) text += line + "\n";
    }
    return text;
}

}  // namespace

std::string StoredTable::title() const {
    return fmt::format("{} on {} ranks, {} stages a rank, {} microbatches", name, shape.ranks, shape.stages_per_rank,
                       shape.microbatches);
}

const Stored& stored() {
    static const Stored all = [] {
        Stored out;
        std::ifstream in(LOCKSTEP_SOURCE_DIR "/tests/schedules/schedules.txt");
        for (std::string line; std::getline(in, line);) {
            std::istringstream head(line);
            std::string name;
            head >> name;
            const bool drawn = name == "drawn";
            if (drawn) head >> name;
            schedules::Shape shape;
            head >> shape.ranks >> shape.stages_per_rank >> shape.microbatches;
            if (drawn) {
                out.drawings.push_back({name, shape, read_drawing(in)});
            } else {
                out.tables.push_back({name, shape, false, {}, {}});
                read_rows(in, out.tables.back());
            }
        }
        return out;
    }();
    return all;
}

}  // namespace lockstep::testing
