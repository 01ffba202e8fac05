// The time that a collective takes as a ring over links: the one formula, for what holds launches back (comm/local) and for
// the simulator.
#pragma once

#include <algorithm>
#include <cstdint>

#include "mesh/collective.h"

namespace lockstep::mesh {

struct Link {
    double bandwidth_bytes_per_s = 0;  // of one rank, each direction; 0: unlimited
    double latency_s = 0;              // of a step of the ring
};

// block_bytes: of one block (mesh/collective.h). The members of one launch follow each other on the link; their latencies
// overlap.
struct RingTraffic {
    double bytes = 0, steps = 0;  // sent by one rank; of the longest ring
    void add(Collective kind, int64_t members, double block_bytes) {
        const RingUse use = traits_of(kind).ring(static_cast<double>(members));
        bytes += use.blocks * block_bytes;
        steps = std::max(steps, use.steps);
    }
    double time_s(const Link& link) const {
        return steps * link.latency_s + (link.bandwidth_bytes_per_s > 0 ? bytes / link.bandwidth_bytes_per_s : 0);
    }
};

}  // namespace lockstep::mesh
