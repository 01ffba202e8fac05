// How a group lies over processes and hosts, and which way its data goes: plain data, the same on every member.
// A *part* is what one process holds of a group. Parts are numbered host by host.
//
// Gathering: `Direct`, everybody to everybody, one latency; `Ring`, each link carries every part once; `TwoLevel`, rings between
// the hosts among equal slots, each part that arrives then goes round its host: a part crosses to a host once, where the plain
// ring brings a host its own parts back.
// Reducing: sums are taken in ascending position whatever the way (comm/communicator.h), so no partial sum but that of the first
// members can travel. `Direct`: every member's values go to their owner, who adds them. `Chain`: the first part passes its sum
// on, each next part adds its own, the last hands the result to its owner; pieces follow each other, so that all links are busy.
// With n members, m of them on one host, direct sends (n - m) m / n of a member's bytes from it, the chain about all of them
// once.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/topology.h"

namespace lockstep::comm::processes {

struct Layout {
    std::vector<int> part_of;                 // by position
    std::vector<std::vector<int>> positions;  // by part, ascending
    std::vector<int> process_of, host_of;     // by part; hosts are numbered from 0 in the order of parts
    std::vector<int> chain;  // the parts in ascending position; empty where a part's positions do not follow each other

    int members() const { return static_cast<int>(part_of.size()); }
    int parts() const { return static_cast<int>(positions.size()); }
    int part_of_process(int process) const;  // -1: none
};

// Ranks of a process follow each other.
Layout layout_of(const std::vector<int>& ranks, int ranks_per_process, const Topology& topology);

enum class GatherBy { Direct, Ring, TwoLevel };
enum class ReduceBy { Direct, Chain };

// Up to `small_bytes`, of all members together, latency is what counts.
GatherBy choose_gather(const Layout& layout, int64_t total_bytes, int64_t small_bytes);
ReduceBy choose_reduce(const Layout& layout, int64_t total_bytes, int64_t small_bytes);

// One part on its way to (send) or from (receive) another.
struct Hop {
    int peer, part;
};
// What a part sends and receives, each in order. A part may be sent once it is there. Lists of all parts have one common order
// in which every hop comes after those that it needs, so bounded buffers cannot lock them.
struct Hops {
    std::vector<Hop> sends, receives;
};
Hops gather_hops(const Layout& layout, GatherBy by, int part);

}  // namespace lockstep::comm::processes
