// Runs the calls of all ranks without any numbers: two streams a rank, waits, one queue of communication a rank, collectives as
// meetings. Two train steps, then two of eval where the program has it, in several orders of who moves first. Legal: everybody
// arrives, no order that streams and waits allow (the queue's own order is no excuse for a missing wait) reads what was not written, and every gradient, norm and loss is the sum that the step owes.
// Serves as the other opinion on what the static checker says; shares no code with src/passes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ir/program.h"

namespace lockstep::check_test {

// One program a rank, in rank order; equal pointers allowed. Nothing where legal, else the first breach found.
std::optional<std::string> run_ranks(const std::vector<const ir::Program*>& ranks);

}  // namespace lockstep::check_test
