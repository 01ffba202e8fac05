// NVIDIA's GPUs that the module serves, as far as its kernels and libraries differ between them.
#pragma once

namespace lockstep::kernels::cuda {

// By compute capability. Ampere: also Ada (8.x). Consumer: 12.x; to kernels it is like Ampere, and unlike Blackwell (10.x).
enum class GpuKind { Ampere, Hopper, Blackwell, Consumer };

// compute_capability: 89 for 8.9.
constexpr GpuKind kind_of(int compute_capability) {
    return compute_capability >= 120   ? GpuKind::Consumer
           : compute_capability >= 100 ? GpuKind::Blackwell
           : compute_capability >= 90  ? GpuKind::Hopper
                                       : GpuKind::Ampere;
}
// One of each.
constexpr int compute_capability_of(GpuKind kind) {
    switch (kind) {
        case GpuKind::Ampere: return 80;
        case GpuKind::Hopper: return 90;
        case GpuKind::Blackwell: return 100;
        case GpuKind::Consumer: break;
    }
    return 120;
}

}  // namespace lockstep::kernels::cuda
