// SwiGLU of W elements.
#pragma once

#include "kernels/gpu/dialect.h"

namespace lockstep::kernels::gpu {

template <class T, int W>
__device__ __forceinline__ Floats<W> swiglu_of(const Floats<W>& gate, const Floats<W>& up) {
    Floats<W> y;
    UNROLL
    for (int j = 0; j < W; ++j) y[j] = gate[j] * sigmoid<T>(gate[j]) * up[j];
    return y;
}

template <int W>
struct SwiGluSlopes {
    Floats<W> gate, up, y;  // y: the result of the forward
};
template <class T, int W>
__device__ __forceinline__ SwiGluSlopes<W> swiglu_slopes(const Floats<W>& d, const Floats<W>& gate, const Floats<W>& up) {
    SwiGluSlopes<W> of;
    UNROLL
    for (int j = 0; j < W; ++j) {
        const float s = sigmoid<T>(gate[j]);
        of.up[j] = d[j] * gate[j] * s;
        of.gate[j] = d[j] * up[j] * s * (1.0f + gate[j] * (1.0f - s));
        of.y[j] = gate[j] * s * up[j];
    }
    return of;
}

}  // namespace lockstep::kernels::gpu
