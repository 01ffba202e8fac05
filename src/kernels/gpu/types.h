// What all kernels of a GPU share with the host code that starts them: their stream, and the combinations of storage types of
// which each has a copy. A new type is added to these lists.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/bfloat16.h"
#include "base/float16.h"

namespace lockstep::kernels::gpu {

// The vendor's handle of a queue; the emulator needs none.
using Stream = void*;

// Of an H100. Where sums depend on the number of blocks, that is a multiple of this on every device, so that they have one order.
inline constexpr int kProcessors = 132;

// Everything is stored as T.
#define LOCKSTEP_OF_ONE_TYPE(COPY) COPY(float) COPY(Bf16) COPY(F16)
// What is stored in 16 bits.
#define LOCKSTEP_OF_16_BITS(COPY) COPY(Bf16) COPY(F16)
// What belongs to the residual stream is stored as S, everything else as T.
#define LOCKSTEP_ON_STREAM(COPY) COPY(float, float) COPY(Bf16, Bf16) COPY(float, Bf16) COPY(F16, F16) COPY(float, F16)
// A norm, with its weights as W; and its backward.
#define LOCKSTEP_NORMS(COPY)  \
    COPY(float, float, float) \
    COPY(Bf16, Bf16, Bf16)    \
    COPY(float, Bf16, Bf16)   \
    COPY(Bf16, Bf16, float)   \
    COPY(float, Bf16, float) COPY(F16, F16, F16) COPY(float, F16, F16) COPY(F16, F16, float) COPY(float, F16, float)
#define LOCKSTEP_NORM_BACKWARDS(COPY) \
    COPY(float, float) COPY(Bf16, Bf16) COPY(float, Bf16) COPY(Bf16, float) COPY(F16, F16) COPY(float, F16) COPY(F16, float)

}  // namespace lockstep::kernels::gpu
