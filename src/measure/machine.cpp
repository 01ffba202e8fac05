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
#include "measure/op_bench.h"
#include "measure/overheads.h"
#include "measure/pin.h"
#include "measure/roofs.h"
#include "measure/stopwatch.h"
#include "plugins/gpu_module.h"

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
    c.costs.rows = kernel_rows({o.cpus, nullptr, cold_bytes, o.budget_s, o.small_only, o.progress});
    return c;
}

namespace {

// Of large regions of the device's memory, read plus written.
double copy_bytes_per_s(device::Device& device, int64_t bytes) {
    device::Queue& queue = device.queue(QueueName::Compute);
    char *const from = new_memory(device, bytes), *const to = new_memory(device, bytes);
    return best_rate(5, 20.0 * static_cast<double>(bytes), [&] {
        for (int i = 0; i < 10; ++i) device.copy(queue, to, from, bytes);
        device.finish(queue);
    });
}

}  // namespace

sim::Cluster gpu(const MachineOptions& o) {
    const plugins::GpuModule& module = plugins::gpu_module();
    sim::Cluster c;
    c.name = "this GPU";
    c.description = fmt::format("{}, measured by lockstep bench", module.description);
    c.devices = true, c.module.name = "cuda", c.module.compute_capability = module.compute_capability;
    c.memory_bytes = static_cast<double>(module.memory_bytes);
    for (const char* type : {"f32", "bf16", "f16"}) {
        if (const double peak = module.peak_flops_per_s(type); peak > 0) c.costs.flops_per_s[type] = {peak};
    }
    const auto cache_bytes = static_cast<double>(module.cache_bytes);
    if (cache_bytes > 0) c.costs.caches = {{cache_bytes, 1, 1}};
    {
        const std::unique_ptr<device::Machine> machine = module.machine(0);
        const int64_t region_bytes = o.small_only ? int64_t{64} << 20 : std::min(int64_t{4} << 30, module.memory_bytes / 16);
        const MeasuredDevice device{*machine, plugins::gpu_catalog(), region_bytes};
        on_cpu(o.cpus[0], [&] {
            const std::unique_ptr<device::Device> own = machine->device({});
            c.costs.bytes_per_s = {copy_bytes_per_s(*own, region_bytes / 4)};
        });
        c.costs.rows = kernel_rows({o.cpus, &device, 4 * cache_bytes, o.budget_s, o.small_only, o.progress}, &c.host.launch_s);
    }
    c.reserve_bytes = static_cast<double>(module.used_bytes());  // by the driver and by libraries, now that nothing else is
    const auto of_data_sheet = c.costs.flops_per_s;
    for (const ops::CostRow& row : c.costs.rows) {  // where no data sheet is known, the best product
        if (row.key.op != ir::kEinsum || of_data_sheet.contains(row.key.dtype)) continue;
        std::vector<double>& roof = c.costs.flops_per_s[row.key.dtype];
        roof = {std::max(roof.empty() ? 0.0 : roof[0], row.key.flops / row.warm_s)};
    }
    return c;
}

}  // namespace lockstep::measure
