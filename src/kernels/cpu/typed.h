// A kernel in several copies, one for each combination of storage types. Data is stored in those types; arithmetic is in float.
// Such a kernel is called like a function: the types of the arguments choose the copy. A new type is added to these lists.
#pragma once

#include "base/bfloat16.h"
#include "base/float16.h"

namespace lockstep::kernels::cpu {

template <class Function>
struct Copy {
    Function* function = nullptr;
    constexpr operator Function*() const { return function; }
};

// Copies for each T; made from a template lambda that names the copy of its arguments.
template <template <class> class Kernel, class... T>
struct CopiesOfOne : Copy<Kernel<T>>... {
    constexpr CopiesOfOne() = default;
    template <class NameCopy>
    constexpr explicit CopiesOfOne(NameCopy name) : Copy<Kernel<T>>{name.template operator()<T>()}... {}
};

template <class S, class T = S, class W = T>
struct Stored {
    using Stream = S;
    using Rest = T;
    using Weights = W;
};
template <template <class, class> class Kernel, class... P>
struct CopiesOfTwo : Copy<Kernel<typename P::Stream, typename P::Rest>>... {
    constexpr CopiesOfTwo() = default;
    template <class NameCopy>
    constexpr explicit CopiesOfTwo(NameCopy name)
        : Copy<Kernel<typename P::Stream, typename P::Rest>>{
              name.template operator()<typename P::Stream, typename P::Rest>()}... {}
};
template <template <class, class, class> class Kernel, class... P>
struct CopiesOfThree : Copy<Kernel<typename P::Stream, typename P::Rest, typename P::Weights>>... {
    constexpr CopiesOfThree() = default;
    template <class NameCopy>
    constexpr explicit CopiesOfThree(NameCopy name)
        : Copy<Kernel<typename P::Stream, typename P::Rest, typename P::Weights>>{
              name.template operator()<typename P::Stream, typename P::Rest, typename P::Weights>()}... {}
};

// Everything is stored as T.
template <template <class> class Kernel>
using Typed = CopiesOfOne<Kernel, float, Bf16, F16>;

// A kernel at the border of the residual stream: what belongs to the stream is stored as S, everything else as T. They are one
// type, or the stream is float and the other narrow (training.fp32_residual_connection).
template <template <class, class> class Kernel>
using TypedOnStream = CopiesOfTwo<Kernel, Stored<float>, Stored<Bf16>, Stored<float, Bf16>, Stored<F16>, Stored<float, F16>>;

// A norm: what it reads and writes as above, and its weights (and bias), stored as W. They are T, or float where T is narrow
// (training.mixed_precision_norm).
template <template <class, class, class> class Kernel>
using TypedNorm =
    CopiesOfThree<Kernel, Stored<float>, Stored<Bf16>, Stored<float, Bf16>, Stored<Bf16, Bf16, float>, Stored<float, Bf16, float>,
                  Stored<F16>, Stored<float, F16>, Stored<F16, F16, float>, Stored<float, F16, float>>;

// Its backward, which reads and writes nothing but the stream, weights W and what is float in any case.
template <template <class, class> class Kernel>
using TypedNormBackward = CopiesOfTwo<Kernel, Stored<float>, Stored<Bf16>, Stored<float, Bf16>, Stored<Bf16, float>, Stored<F16>,
                                      Stored<float, F16>, Stored<F16, float>>;

}  // namespace lockstep::kernels::cpu
