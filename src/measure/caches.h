// The caches of this machine, as copies find them.
#pragma once

#include <vector>

#include "ops/cost.h"

namespace lockstep::measure {

// Two levels: the cache of each core, of the size that the system reports, and the cache that cores share. A virtual machine
// may be given the size of a much larger shared cache than it can use, so its size is measured: where copies by all cores at
// once become as slow as halfway to memory. Takes about a second.
std::vector<ops::CacheLevel> caches(const std::vector<int>& cpus, double memory_bytes);

}  // namespace lockstep::measure
