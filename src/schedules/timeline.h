// A table on a clock: when each cell starts if every action waits for what it needs and for the cell before it in its row.
// Transfers take no time: the simulator plays whole programs; this serves drawings, formulas and the proof that a table ends.
#pragma once

#include <optional>
#include <vector>

#include "base/function_ref.h"
#include "schedules/table.h"

namespace lockstep::schedules {

struct Cell {
    int64_t rank = 0, position = 0;
    bool operator==(const Cell&) const = default;
};

struct Timeline {
    std::vector<std::vector<double>> start;  // of each cell; of those that ran, where one is stuck
    std::vector<double> busy;                // per rank: time spent on actions
    std::optional<Cell> stuck;               // the earliest cell that waits forever

    // Between the start of its first action and the end of its last one, the longest wait of a rank: the papers' bubble.
    double bubble = 0;
};

using Cost = FunctionRef<double(const Action&)>;  // in any unit; asked for idle cells too

Timeline play(const Table& table, Cost cost);
// What a stage makes for a neighbour arrives there so much later. Asked of (from, to).
using Delay = FunctionRef<double(int64_t, int64_t)>;
Timeline play(const Table& table, Cost cost, Delay delay);

// With idle cells exactly where a rank waits while every action takes one unit.
Table with_waits(const Table& table);
// The same only for waits of forwards, behind the idle cells that are there.
Table wait_for_forwards(const Table& table);

// How many microbatches a stage, and a rank over all its stages, holds at most between forward and the end of backward.
struct InFlight {
    std::vector<int64_t> of_stage, of_rank;
};
InFlight in_flight(const Table& table);

}  // namespace lockstep::schedules
