// NVIDIA's GPUs that the module serves, as far as its kernels and libraries differ between them.
#pragma once

namespace lockstep::kernels::cuda {

// By compute capability. Ada: 8.9, to kernels like Ampere (other 8.x), but it has float8. Consumer: 12.x; to kernels it is like Ada,
// and unlike Blackwell (10.x).
enum class GpuKind { Ampere, Ada, Hopper, Blackwell, Consumer };

// compute_capability: 89 for 8.9.
constexpr GpuKind kind_of(int compute_capability) {
    return compute_capability >= 120   ? GpuKind::Consumer
           : compute_capability >= 100 ? GpuKind::Blackwell
           : compute_capability >= 90  ? GpuKind::Hopper
           : compute_capability >= 89  ? GpuKind::Ada
                                       : GpuKind::Ampere;
}
// Products of float8: cublasLtMatmul in its documentation.
constexpr bool has_float8(int compute_capability) { return kind_of(compute_capability) != GpuKind::Ampere; }
// One of each.
constexpr int compute_capability_of(GpuKind kind) {
    switch (kind) {
        case GpuKind::Ampere: return 80;
        case GpuKind::Ada: return 89;
        case GpuKind::Hopper: return 90;
        case GpuKind::Blackwell: return 100;
        case GpuKind::Consumer: break;
    }
    return 120;
}

}  // namespace lockstep::kernels::cuda
