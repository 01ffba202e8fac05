// Islands that are jobs of their own, as a job's ranks know them: what they must have in common, and the state that an island
// takes from another one. meet_kernel.h has the op `meet`.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/islands/member.h"
#include "runtime/executor.h"

namespace lockstep::runtime {

// A checksum of the states of all programs and of the routines that meet. Islands with another one cannot meet.
std::string meeting_text(const std::vector<ir::Program>& programs);
// A checksum of a rank's anchors and outer momentum. They are equal on islands that have been at the same meetings.
std::string anchor_text(Executor& executor);

// Everything that outlives a step, with a few numbers of the caller's: to the islands that take it, or from the one that gives
// it.
void give_state(comm::islands::Member& member, Executor& executor, std::span<const int64_t> numbers);
void take_state(comm::islands::Member& member, Executor& executor, std::span<int64_t> numbers);

}  // namespace lockstep::runtime
