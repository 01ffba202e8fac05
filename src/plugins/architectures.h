// For which GPUs a module's kernels are compiled.
#pragma once

#include <string_view>

namespace lockstep::plugins {

// Compute capabilities that kernels and libraries are asked for.
inline constexpr int kLeastComputeCapability = 80;
inline constexpr const char* kServedGpus = "NVIDIA's GPUs of compute capability 8.0 to 12.0";

enum class Compiled { No, Yes, AtFirstStart };  // AtFirstStart: by the driver, from PTX, which it then keeps
// architectures: CMake's, with commas: "80,90a-real" is code for 8.x and its PTX for what is newer, and code for 9.0.
Compiled compiled_for(std::string_view architectures, int compute_capability);

}  // namespace lockstep::plugins
