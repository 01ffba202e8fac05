// What one member does in a launch within a process: which bytes it reads from whom and what it writes.
// Requires: all requests are published and of equal shape, and every member stays in the launch until all are done.
// Never blocks, throws or allocates.
#pragma once

#include <span>

#include "comm/launch.h"

namespace lockstep::comm::local {

// Does position's share of request `index`; launch[k] are the requests of member k.
// AllReduce writes into every member's out, the other kinds into position's only.
void execute(std::span<const Requests> launch, size_t index, int position);

// What the second of two members does in a launch of transfers.
void take(Requests given, Requests taken);

}  // namespace lockstep::comm::local
