// A kernel in one copy a storage type. `Kernel<T>` is its function type: data is stored as T, arithmetic is in float.
// A Typed is called like a function; the types of the arguments choose the copy.
#pragma once

#include "base/bfloat16.h"

namespace lockstep::kernels::cpu {

template <template <class> class Kernel>
struct Typed {
    Kernel<float>* f32;
    Kernel<Bf16>* bf16;

    operator Kernel<float>*() const { return f32; }
    operator Kernel<Bf16>*() const { return bf16; }
};

// A kernel at the border of the residual stream: what belongs to the stream is stored as `S`, everything else as T. They are one
// type, or the stream is float beside Bf16 (training.fp32_residual_connection).
template <template <class, class> class Kernel>
struct TypedOnStream {
    Kernel<float, float>* f32;
    Kernel<Bf16, Bf16>* bf16;
    Kernel<float, Bf16>* wide_stream;

    operator Kernel<float, float>*() const { return f32; }
    operator Kernel<Bf16, Bf16>*() const { return bf16; }
    operator Kernel<float, Bf16>*() const { return wide_stream; }
};

}  // namespace lockstep::kernels::cpu
