// The processors that this process may use.
#pragma once

#include <vector>

namespace lockstep {

// After affinity and the cgroup's quota; at least one.
std::vector<int> usable_cpus();

}  // namespace lockstep
