#include "measure/machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <thread>

#include "kernels/cpu/isa.h"
#include "measure/caches.h"
#include "measure/collectives.h"
#include "measure/kernels.h"
#include "measure/overheads.h"
#include "measure/roofs.h"

namespace lockstep::measure {
namespace {

std::string processor() {
    std::ifstream in("/proc/cpuinfo");
    for (std::string line; std::getline(in, line);) {
        if (const size_t colon = line.find(": "); line.starts_with("model name") && colon != std::string::npos)
            return line.substr(colon + 2);
    }
    return "unknown processor";
}

}  // namespace

sim::Cluster machine(const MachineOptions& o) {
    sim::Cluster c;
    const auto cores = static_cast<int>(o.cpus.size());
    c.name = "this machine";
    c.description = fmt::format("{} cores of {}, {} kernels, measured by lockstep bench", cores, processor(),
                                kernels::cpu::name(kernels::cpu::isa()));
    c.memory_bytes = o.memory_bytes;
    c.instruction_sets = kernels::cpu::instruction_sets_here();
    c.costs.cores = cores;
    if (o.progress) o.progress("multiply-adds and copies", 0);
    c.costs.caches = caches(o.cpus, o.memory_bytes);
    const ops::CacheLevel& farthest = c.costs.caches.back();
    const double cold_bytes = 4 * farthest.bytes * std::ceil(static_cast<double>(cores) / farthest.cores);
    const Roofs measured = roofs(o.cpus);
    c.costs.flops_per_s = measured.flops_per_s;
    c.costs.bytes_per_s = measured.copy_bytes_per_s;
    if (o.progress) o.progress("collectives", 0);
    c.costs.collectives = collective_rows(o.cpus, cold_bytes);
    c.costs.step_overhead_s = step_overhead_s(cores);
    c.costs.rows = kernel_rows({o.cpus, cold_bytes, o.budget_s, o.small_only, o.progress});
    return c;
}

}  // namespace lockstep::measure
