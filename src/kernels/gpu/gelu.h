// gelu(x) = x s(2u), s the sigmoid, 2u = 2 sqrt(2 / pi) (x + 0.044715 x^3); and its derivative.
#pragma once

#include "kernels/gpu/dialect.h"

namespace lockstep::kernels::gpu {

inline constexpr float kGeluRoot = 1.5957691216f, kGeluCube = 0.044715f;

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
__device__ __forceinline__ float gelu_share(float x) { return sigmoid(kGeluRoot * (x + kGeluCube * x * x * x)); }
__device__ __forceinline__ float gelu_slope(float x) {
    const float s = gelu_share(x);
    return s + x * s * (1.0f - s) * kGeluRoot * (1.0f + 3.0f * kGeluCube * x * x);
}

}  // namespace lockstep::kernels::gpu
