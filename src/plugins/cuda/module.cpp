// The module for NVIDIA's GPUs.
#include "comm/gpu/moves.h"
#include "comm/nccl/nccl_transport.h"
#include "device/gpu/gpu.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_plans.h"
#include "kernels/cuda/products.h"
#include "kernels/gpu/any_type.h"
#include "kernels/gpu/catalog.h"
#include "plugins/gpu_module.h"

namespace {

lockstep::plugins::GpuModule made() {
    using namespace lockstep;
    plugins::GpuModule m;
    m.moves = &comm::gpu::moves();
    m.machine = [](int index) { return device::gpu::machine(kernels::gpu::add_one, index % device::gpu::find().count); };
    m.across_processes = [](comm::ProcessGroup& group, int ranks) {
        return comm::nccl::transport(group, ranks, comm::gpu::moves());
    };
    m.avoid_sums_in_switches = comm::nccl::avoid_sums_in_switches;
    const device::gpu::Found found = device::gpu::find();
    m.kernels = {&kernels::cuda::product_kernels(found.compute_capability), &kernels::cuda::attention_kernels(),
                 &kernels::gpu::all_kernels()};
    m.used_bytes = device::gpu::used_bytes;
    m.peak_flops_per_s = [](std::string_view dtype) { return device::gpu::peak_flops_per_s(device::gpu::find().name, dtype); };
    m.description = found.description + ", " + comm::nccl::version_text() + ", " + kernels::cuda::cudnn_text();
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
