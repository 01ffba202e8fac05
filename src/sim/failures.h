// How often devices of a cluster fail, as its file says: machine.mtbf_hours, of one device, from published runs.
#pragma once

#include <vector>

#include "sim/cluster.h"

namespace lockstep::sim {

// Hours of one device between two failures that stop a job; 0: the files do not say. The last file that says it counts.
double mtbf_hours_of(const std::vector<Source>& sources);

}  // namespace lockstep::sim
