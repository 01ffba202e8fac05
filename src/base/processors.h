// The processors that this process may use.
#pragma once

#include <string>
#include <vector>

namespace lockstep {

// After affinity and the cgroup's quota; at least one.
std::vector<int> usable_cpus();

// The running kernel's name for itself: processes that say the same are on one machine, whatever their hosts are called. Empty
// where the system does not say.
std::string running_kernel();

}  // namespace lockstep
