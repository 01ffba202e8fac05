// The time of single ops on this machine: rows of the cost table.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ops/cost.h"

namespace lockstep::measure {

struct KernelOptions {
    std::vector<int> cpus;
    double cold_bytes = 64 << 20;  // of operands used in turn: more than a cache holds
    double budget_s = 80;
    bool small_only = false;  // a rough table in seconds
    std::function<void(const std::string& what, double share_done)> progress;
};

// Ops of small programs on a grid of model shapes and layouts, each by itself: operands in the cache, operands in memory, and
// with every other core doing the same.
std::vector<ops::CostRow> kernel_rows(const KernelOptions& options);

}  // namespace lockstep::measure
