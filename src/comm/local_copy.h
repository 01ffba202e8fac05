// What one member does in a launch within a process: which bytes it reads from whom and what it writes.
// Requires: all requests are published and of equal shape, and every member stays in the launch until all are done.
// Never blocks, throws or allocates.
#pragma once

#include <chrono>
#include <span>

#include "comm/launch.h"
#include "comm/moves.h"
#include "mesh/ring.h"

namespace lockstep::comm::local {

// By `moves`, in the queue: position's share of request `index` of a symmetric launch; launch[k] are the requests of member k.
// AllReduce writes into every member's out, the other kinds into position's only.
void execute(const Moves& moves, device::Queue& queue, std::span<const Requests> launch, size_t index, int position);

// The time that rings over the modelled links take for the whole launch.
std::chrono::duration<double> link_time(const mesh::Link& link, Requests requests, int members);

// What the second of two members does in a launch of receives.
void receive(const Moves& moves, device::Queue& queue, Requests sent, Requests received);

}  // namespace lockstep::comm::local
