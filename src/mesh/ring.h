// The time that a collective takes as a ring over links: the one formula, for what holds launches back (comm/local) and for
// the simulator.
#pragma once

#include <cstdint>

#include "mesh/collective.h"

namespace lockstep::mesh {

struct Link {
    double bandwidth_bytes_per_s = 0;  // of one rank, each direction; 0: unlimited
    double latency_s = 0;              // of a step of the ring
};

// block_bytes: a member's own block (all_gather: its operand; reduce_scatter: its result; all_reduce: the whole; permute: what
// it sends). The members of one launch follow each other on the link; their latencies overlap.
struct RingTraffic {
    double bytes = 0, steps = 0;  // sent by one rank; of the longest ring
    void add(Collective kind, int64_t members, double block_bytes) {
        const bool all_reduce = kind == Collective::AllReduce;
        const double passes = all_reduce ? 2 : 1, others = kind == Collective::Permute ? 1 : static_cast<double>(members - 1);
        bytes += (all_reduce ? passes / static_cast<double>(members) : 1) * others * block_bytes;
        if (passes * others > steps) steps = passes * others;
    }
    double time_s(const Link& link) const {
        return steps * link.latency_s + (link.bandwidth_bytes_per_s > 0 ? bytes / link.bandwidth_bytes_per_s : 0);
    }
};

}  // namespace lockstep::mesh
