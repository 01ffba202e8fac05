// Kernels on the emulator are given to the streams of the fake.
// LOCKSTEP_FAKE_COMPUTE_CAPABILITY: of the device, instead of an H100's.
// LOCKSTEP_FAKE_FIRST_ALGORITHM_US: by which cuBLASLt's first algorithm is slower than others.
#include <cstdlib>

#include "base/error.h"
#include "kernels/gpu/emulator.h"
#include "tests/fakes/cuda/fake.h"

namespace lockstep::testing {
namespace {

[[maybe_unused]] const bool given = [] {
    kernels::gpu::emulator::set_give([](void* stream, std::function<void()> launch) {
        const cudaError_t error = fakes::cuda::enqueue(static_cast<cudaStream_t>(stream), "kernel", std::move(launch));
        ensure(error == cudaSuccess, "a kernel was refused: " + fakes::cuda::refusal());
    });
    if (const char* const capability = std::getenv("LOCKSTEP_FAKE_COMPUTE_CAPABILITY")) {
        fakes::cuda::DeviceProperties properties;
        properties.name = "NVIDIA Other", properties.major = std::atoi(capability) / 10,
        properties.minor = std::atoi(capability) % 10;
        fakes::cuda::set_device_properties(properties);
    }
    if (const char* const us = std::getenv("LOCKSTEP_FAKE_FIRST_ALGORITHM_US"))
        fakes::cuda::set_first_algorithm_us(std::atoi(us));
    return true;
}();

}  // namespace
}  // namespace lockstep::testing
