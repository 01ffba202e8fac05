// The kernels of GPUs, one source for CUDA, HIP and the emulator. What is linked decides where they run.
#pragma once

#include <vector>

#include "kernels/kernel.h"

namespace lockstep::kernels::gpu {

// In the module and in tests on the emulator, which link the kernels.
const std::vector<Registered>& all_kernels();
// In every build, without make(): programs for a GPU are compiled where there is none.
const std::vector<Registered>& planned_kernels();

}  // namespace lockstep::kernels::gpu
