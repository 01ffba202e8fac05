// The C++ type that stores each element type: the one list of them. A type without a row does not compile, or throws.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include "base/bfloat16.h"
#include "base/dtype.h"
#include "base/float16.h"
#include "base/float8.h"

namespace lockstep {

// Calls f(std::type_identity<T>()) with the type T that stores `t`, and returns what it returns.
template <class F>
constexpr decltype(auto) with_storage(Dtype t, F&& f) {
    switch (t) {
        case Dtype::F32: return std::forward<F>(f)(std::type_identity<float>());
        case Dtype::F64: return std::forward<F>(f)(std::type_identity<double>());
        case Dtype::I32: return std::forward<F>(f)(std::type_identity<int32_t>());
        case Dtype::BF16: return std::forward<F>(f)(std::type_identity<Bf16>());
        case Dtype::F16: return std::forward<F>(f)(std::type_identity<F16>());
        case Dtype::I8: return std::forward<F>(f)(std::type_identity<int8_t>());
        case Dtype::F8E4M3: return std::forward<F>(f)(std::type_identity<F8E4M3>());
        case Dtype::F8E5M2: return std::forward<F>(f)(std::type_identity<F8E5M2>());
        case Dtype::E8M0: return std::forward<F>(f)(std::type_identity<E8M0>());
    }
    throw std::logic_error("an element type that nothing stores");
}

// The other way. Of a type that stores none there is no value.
template <class T>
consteval Dtype dtype_stored_as() {
    for (const Dtype t : kDtypes)
        if (with_storage(t, []<class S>(std::type_identity<S>) { return std::is_same_v<S, T>; })) return t;
    throw std::logic_error("a type that stores no element type");
}
template <class T>
inline constexpr Dtype kDtypeOf = dtype_stored_as<T>();

}  // namespace lockstep
