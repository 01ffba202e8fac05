// Kernels on the emulator are given to the streams of the fake.
// LOCKSTEP_FAKE_COMPUTE_CAPABILITY: of the device, instead of an H100's.
// LOCKSTEP_FAKE_FIRST_ALGORITHM_US: by which cuBLASLt's first algorithm is slower than others.
// LOCKSTEP_FAKE_MOST_SCORES: of a backward of attention that asks cuDNN for at most 1 GiB of workspace.
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
    if (const char* const scores = std::getenv("LOCKSTEP_FAKE_MOST_SCORES"))
        fakes::cuda::set_most_scores_of_attention(std::atoll(scores));
    return true;
}();

}  // namespace
}  // namespace lockstep::testing
