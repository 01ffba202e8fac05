#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "base/error.h"

namespace lockstep::kernels::gpu {

// See dialect.h.
void check_launch();
void check_launch() {
    const cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess) throw InternalError(fmt::format("a kernel could not be started: {}", cudaGetErrorString(error)));
}

}  // namespace lockstep::kernels::gpu
