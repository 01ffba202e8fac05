// Kernels on the emulator are given to the streams of the fake.
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
    return true;
}();

}  // namespace
}  // namespace lockstep::testing
