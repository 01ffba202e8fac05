// The kernels of GPUs on the emulator, and another backend's for what they do not serve.
#pragma once

#include <vector>

#include "kernels/kernel.h"

namespace lockstep::testing {

ops::KernelCatalog emulated_gpu_catalog(const std::vector<kernels::Registered>& rest, int threads = 1);

}  // namespace lockstep::testing
