// The time of single ops on this machine: rows of the cost table.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "device/device.h"
#include "ops/catalog.h"
#include "ops/cost.h"

namespace lockstep::measure {

// In place of the host's cores.
struct MeasuredDevice {
    device::Machine& machine;
    ops::KernelCatalog catalog;
    int64_t region_bytes = 0;  // for the operands, and for the results, of an op; larger ones are left out
};

struct KernelOptions {
    std::vector<int> cpus;
    const MeasuredDevice* device = nullptr;
    double cold_bytes = 64 << 20;  // of operands used in turn: more than a cache holds
    double budget_s = 80;
    bool small_only = false;  // a rough table in seconds
    std::function<void(const std::string& what, double share_done)> progress;
};

// Ops of small programs on a grid of model shapes and layouts, each by itself: operands in the cache, operands in memory, and,
// of the host, with every other core doing the same. UserError bench.memory where there is no room for operands.
// given_s: the mean time of the host to give an op to the device; of the host's own kernels, nothing that is of use.
std::vector<ops::CostRow> kernel_rows(const KernelOptions& options, double* given_s = nullptr);

}  // namespace lockstep::measure
