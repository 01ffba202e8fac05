// The in-process transport on this machine: rows of the cost table.
#pragma once

#include <vector>

#include "ops/cost.h"

namespace lockstep::measure {

// Every kind, 2 members up to twice the cores, blocks of 1 KiB to 16 MiB. cold_bytes: of results used in turn.
std::vector<ops::CollectiveRow> collective_rows(const std::vector<int>& cpus, double cold_bytes);

}  // namespace lockstep::measure
