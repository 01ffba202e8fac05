// Timelines of a step from the processes that recorded them to all others.
#pragma once

#include <vector>

#include "ir/timeline.h"
#include "runtime/ranks.h"

namespace lockstep::runtime {

// timelines[r] of rank r: those of the ranks here are given to the other processes, and theirs are taken. Every process calls
// it at the same time.
void share_timelines(const Ranks& ranks, std::vector<ir::Timeline>& timelines);

}  // namespace lockstep::runtime
