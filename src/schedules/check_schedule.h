// Is a table legal? Every stage lives on one rank; each (stage, microbatch) has one F, and one B or one I and one W, in this
// order; whatever a stage receives is sent; and no rank waits for another that waits for it. Shares no code with what makes
// tables, but for the clock that finds a circle of waits.
#pragma once

#include <optional>
#include <string>

#include "schedules/table.h"
#include "schedules/timeline.h"

namespace lockstep::schedules {

struct Violation {
    Cell cell;            // the first wrong one: earliest in its row, then lowest rank
    std::string message;  // begins with the action: "1B0 runs before its forward 1F0"
};

// Requires of `stages` and `microbatches` only that they are what the caller expects to find.
std::optional<Violation> check_schedule(const Table& table);

}  // namespace lockstep::schedules
