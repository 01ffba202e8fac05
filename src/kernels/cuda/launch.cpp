#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "base/error.h"

namespace lockstep::kernels::gpu {
namespace {

void check(cudaError_t error, const char* what) {
    if (error != cudaSuccess) throw InternalError(fmt::format("{}: {}", what, cudaGetErrorString(error)));
}

}  // namespace

// See dialect.h.
void check_launch();
void check_launch() { check(cudaGetLastError(), "a kernel could not be started"); }
unsigned most_shared_bytes();
unsigned most_shared_bytes() {
    int device = 0, bytes = 0;
    check(cudaGetDevice(&device), "cudaGetDevice");
    check(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "cudaDeviceGetAttribute");
    return static_cast<unsigned>(bytes);
}

}  // namespace lockstep::kernels::gpu
