// The kernels of GPUs, one source for CUDA, HIP and the emulator. What is linked decides where they run.
#pragma once

#include <vector>

#include "kernels/kernel.h"

namespace lockstep::kernels::gpu {

const std::vector<Registered>& all_kernels();

// Part of it: kernels of any element type.
void add_any_type(std::vector<Registered>& all);

}  // namespace lockstep::kernels::gpu
