// What ranks wrote when they were lost or hung (runtime/watchdog.h): read with every field checked, as a record may be damaged,
// and put together.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/queues.h"

namespace lockstep::report {

struct FlightOp {
    double began_s_ago = 0;
    std::optional<double> time_s;  // none: the rank is still there
    bool rests = false;            // between two steps
    std::string routine, op;
    int64_t layer = 0, microbatch = 0;
    std::vector<int64_t> ranks;  // that join in it; empty: it is no collective
};
struct FlightRecord {
    int64_t rank = 0, ranks = 0, process = 0, pid = 0;
    std::string host, reason;
    ByStepQueue<std::vector<FlightOp>> queues;
};

constexpr int64_t kMostRanks = 1 << 20;

// None, and why in `why`: the text is no JSON object with all these fields in their range.
std::optional<FlightRecord> parse_flight_record(std::string_view text, std::string& why);

using FlightRecords = std::map<int64_t, FlightRecord>;  // by rank
// Of a folder, or of its folder comm_traces. Warns of files that are damaged.
FlightRecords read_flight_records(const std::string& folder);

// {reason, without_record, awaited_elsewhere, places}
nlohmann::ordered_json to_json(const FlightRecords& records);
// The same for a person. `ops`: the last ones of each rank.
std::string text_of(const FlightRecords& records, int64_t ops);

}  // namespace lockstep::report
