// The module for NVIDIA's GPUs.
#include <fmt/format.h>

#include "comm/gpu/moves.h"
#include "comm/nccl/nccl_transport.h"
#include "comm/peer/memory.h"
#include "comm/peer/peer_transport.h"
#include "device/gpu/gpu.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_plans.h"
#include "kernels/cuda/products.h"
#include "kernels/gpu/any_type.h"
#include "kernels/gpu/catalog.h"
#include "plugins/architectures.h"
#include "plugins/gpu_module.h"

namespace {

using namespace lockstep;

// Empty: it is usable.
std::string why_unusable(const device::gpu::Found& found) {
    const auto text = [](int capability) { return fmt::format("{}.{}", capability / 10, capability % 10); };
    if (found.compute_capability < plugins::kLeastComputeCapability)
        return fmt::format("{} has compute capability {}, and Lockstep's kernels need {} or later", found.name,
                           text(found.compute_capability), text(plugins::kLeastComputeCapability));
    if (plugins::compiled_for(LOCKSTEP_ARCHITECTURES, found.compute_capability) == plugins::Compiled::No)
        return fmt::format(
            "{} has compute capability {}, and the module was built for LOCKSTEP_CUDA_ARCHITECTURES = {}: build it with {} among "
            "them",
            found.name, text(found.compute_capability), LOCKSTEP_ARCHITECTURES, found.compute_capability);
    return "";
}

plugins::GpuModule made() {
    plugins::GpuModule m;
    m.moves = &comm::gpu::moves();
    m.machine = [](int index) { return device::gpu::machine(kernels::gpu::add_one, index % device::gpu::find().count); };
    m.across_processes = [](comm::ProcessGroup& group, int ranks, bool by_peers) {
        std::unique_ptr<comm::Transport> all = comm::nccl::transport(group, ranks, comm::gpu::moves());
        return by_peers ? comm::peer::transport(group, std::move(all), comm::gpu::moves()) : std::move(all);
    };
    m.why_no_peers = [](comm::ProcessGroup& group, int index) {
        device::gpu::use(index % device::gpu::find().count);
        return comm::peer::why_not(group);
    };
    m.avoid_sums_in_switches = comm::nccl::avoid_sums_in_switches;
    device::gpu::Found found = device::gpu::find();
    if (found.count > 0) found.why_none = why_unusable(found);
    m.kernels = {&kernels::cuda::product_kernels(found.compute_capability), &kernels::cuda::attention_kernels(),
                 &kernels::gpu::all_kernels()};
    m.used_bytes = device::gpu::used_bytes;
    m.peak_flops_per_s = [](std::string_view dtype) { return device::gpu::peak_flops_per_s(device::gpu::find().name, dtype); };
    m.products_version = kernels::cuda::products_version(), m.product_algorithms = kernels::cuda::product_algorithms;
    const bool at_first_start =
        plugins::compiled_for(LOCKSTEP_ARCHITECTURES, found.compute_capability) == plugins::Compiled::AtFirstStart;
    m.description = found.description + (at_first_start ? ", kernels compiled at the first start" : "") + ", " +
                    comm::nccl::version_text() + ", " + kernels::cuda::cudnn_text();
    m.name = found.name, m.why_none = found.why_none;
    m.compute_capability = found.compute_capability;
    m.memory_bytes = found.memory_bytes, m.cache_bytes = found.cache_bytes;
    return m;
}

}  // namespace

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED const char* lockstep_module_build() {
    static const std::string text = lockstep::plugins::build_text();
    return text.c_str();
}
EXPORTED const lockstep::plugins::GpuModule* lockstep_module() {
    static const lockstep::plugins::GpuModule module = made();
    return &module;
}
