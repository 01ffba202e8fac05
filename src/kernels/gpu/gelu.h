// gelu(x) = x s(2u), s the sigmoid, 2u = 2 sqrt(2 / pi) (x + 0.044715 x^3); and its derivative. T: how x is stored.
#pragma once

#include "kernels/gpu/dialect.h"

namespace lockstep::kernels::gpu {

inline constexpr float kGeluRoot = 1.5957691216f, kGeluCube = 0.044715f;

template <class T>
__device__ __forceinline__ float gelu_share(float x) {
    return sigmoid<T>(x * (kGeluRoot + kGeluRoot * kGeluCube * (x * x)));
}
template <class T>
__device__ __forceinline__ float gelu_slope(float x) {
    const float s = gelu_share<T>(x);
    return s + x * s * (1.0f - s) * (kGeluRoot + 3.0f * kGeluRoot * kGeluCube * (x * x));
}

}  // namespace lockstep::kernels::gpu
