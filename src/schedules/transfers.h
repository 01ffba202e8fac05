// A table with its transfers: what each rank runs, sends and receives, in one list a rank.
// Guarantees: all lists are parts of one order of all actions and transfers in which everything comes behind what it needs. So
// no rank waits forever, even where sending waits for the receiver and all of a rank's work and communication shares one queue.
// Where a stage follows another on the same rank nothing is sent.
#pragma once

#include <vector>

#include "schedules/timeline.h"

namespace lockstep::schedules {

enum class StepKind { Run, Send, Receive };

struct Step {
    StepKind kind = StepKind::Run;
    Action action;      // that runs, or whose result is sent or received: an activation of F, a gradient of B or I
    int64_t peer = -1;  // the other rank of a transfer
    bool operator==(const Step&) const = default;
};

// Transfers are placed where they are made if actions take as long as `cost` says (more than nothing): a receive behind what
// its rank runs when the sender is done. Requires a legal table. Idle cells are left out.
std::vector<std::vector<Step>> with_transfers(const Table& table, Cost cost);

}  // namespace lockstep::schedules
