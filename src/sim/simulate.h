// A program's step on a machine's clock, without running it.
#pragma once

#include "ir/timeline.h"
#include "sim/profile.h"

namespace lockstep::sim {

struct Simulated {
    ir::Timeline timeline;  // of one rank; all run the same program, so it stands for all
    double step_time_s = 0;
    double exposed_communication_s = 0;  // the computing thread in collectives, or waiting for the other thread
    double measured_share = 0;           // of the ops' time: from measured rows rather than rates
};

// The ranks of `program` on `cluster`, placed as `placement` says. Ranks that share cores stand in for each other: they want
// the same at the same time, so one is simulated with its part of the machine.
Simulated simulate(const ir::Program& program, const ir::Entry& entry, const Cluster& cluster,
                   const compile::Placement& placement, const mesh::Link& ring = {});

}  // namespace lockstep::sim
