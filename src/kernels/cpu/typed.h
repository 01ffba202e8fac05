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

// A norm: what it reads and writes as above, and its weights (and bias), stored as W. They are T, or float beside Bf16
// (training.mixed_precision_norm).
template <template <class, class, class> class Kernel>
struct TypedNorm {
    Kernel<float, float, float>* f32;
    Kernel<Bf16, Bf16, Bf16>* bf16;
    Kernel<float, Bf16, Bf16>* wide_stream;
    Kernel<Bf16, Bf16, float>* wide_weights;
    Kernel<float, Bf16, float>* wide_both;

    operator Kernel<float, float, float>*() const { return f32; }
    operator Kernel<Bf16, Bf16, Bf16>*() const { return bf16; }
    operator Kernel<float, Bf16, Bf16>*() const { return wide_stream; }
    operator Kernel<Bf16, Bf16, float>*() const { return wide_weights; }
    operator Kernel<float, Bf16, float>*() const { return wide_both; }
};

// Its backward, which reads and writes nothing but the stream and what is float in any case.
template <template <class, class> class Kernel>
struct TypedNormBackward {
    Kernel<float, float>* f32;
    Kernel<Bf16, Bf16>* bf16;
    Kernel<float, Bf16>* wide_stream;
    Kernel<Bf16, float>* wide_weights;

    operator Kernel<float, float>*() const { return f32; }
    operator Kernel<Bf16, Bf16>*() const { return bf16; }
    operator Kernel<float, Bf16>*() const { return wide_stream; }
    operator Kernel<Bf16, float>*() const { return wide_weights; }
};

}  // namespace lockstep::kernels::cpu
