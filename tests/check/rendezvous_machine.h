// Runs the calls of all ranks without any numbers: queues, waits, and collectives that end when all members have come. Once a
// rank's communication is one line, in the order of its list; once each queue goes on by itself. Two train steps, two of eval where the program has it, another train step, in several orders of who moves first.
// Legal: everybody arrives; in no order that queues and waits allow is a byte read that was not written (that the line happens
// to hold a call back is no excuse for a missing wait); every gradient, norm and loss is the sum that the step owes. Serves as
// the other opinion on what the static checker says; shares no code with src/passes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ir/program.h"

namespace lockstep::check_test {

// One program a rank, in rank order; equal pointers allowed. Nothing where legal, else the first breach found. room: only with
// this many collectives of a rank under way at once; 0: one line.
std::optional<std::string> run_ranks(const std::vector<const ir::Program*>& ranks, std::optional<int> room = std::nullopt);

}  // namespace lockstep::check_test
