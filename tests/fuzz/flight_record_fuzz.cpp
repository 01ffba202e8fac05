// A flight record, as `lockstep report` reads it.
#include <nlohmann/json.hpp>

#include "report/flight_records.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace lockstep;

const fuzz::Declare declare_flight_record("flight_record", [](std::string_view bytes) {
    std::string why;
    const std::optional<report::FlightRecord> record = report::parse_flight_record(bytes, why);
    ensure(record.has_value() || !why.empty(), "a record is left out without a reason");
    if (!record) return;
    const report::FlightRecords records = {{record->rank, *record}};
    report::text_of(records, 5);
    report::to_json(records).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
});

}  // namespace
