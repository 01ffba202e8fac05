// This machine as a cluster: what `lockstep bench` writes.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "sim/cluster.h"

namespace lockstep::measure {

struct MachineOptions {
    std::vector<int> cpus;
    double memory_bytes = 0;
    double budget_s = 80;     // of the kernels
    bool small_only = false;  // of them
    std::function<void(const std::string& what, double share_done)> progress;
};

sim::Cluster machine(const MachineOptions& options);
// The GPU that plugins::gpu_module() finds, as a cluster of devices whose links are not known. Of the options: memory is the
// GPU's, the first core gives work to it. UserError runtime.no_gpu, bench.memory.
sim::Cluster gpu(const MachineOptions& options);

}  // namespace lockstep::measure
