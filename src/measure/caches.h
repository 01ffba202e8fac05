// The caches of this machine, as copies find them.
#pragma once

#include <vector>

#include "ops/cost.h"

namespace lockstep::measure {

// A cache of each core, of the size that the system tells, and one that cores share, of which a virtual machine may be told much
// more than it can use: its size is where copies by all cores at once become as slow as halfway to memory. About a second.
std::vector<ops::CacheLevel> caches(const std::vector<int>& cpus, double memory_bytes);

}  // namespace lockstep::measure
