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

}  // namespace lockstep::kernels::cpu
