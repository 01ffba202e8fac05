// Elements of the float types: one by one from memory whose type is known at run time, and rows of them turned into another
// type, exact where the wider type holds the value, else rounded once, to nearest, ties to even. Not for the step path.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/storage.h"

namespace lockstep {

inline double element(const void* data, Dtype type, int64_t i) {
    return with_storage(type,
                        [&]<class T>(std::type_identity<T>) { return static_cast<double>(static_cast<const T*>(data)[i]); });
}

// Narrow floats are rounded from float32, as the step's casts round them.
inline void set_element(void* data, Dtype type, int64_t i, double value) {
    with_storage(type, [&]<class T>(std::type_identity<T>) {
        if constexpr (is_narrow(kDtypeOf<T>)) static_cast<T*>(data)[i] = T(static_cast<float>(value));
        else static_cast<T*>(data)[i] = static_cast<T>(value);
    });
}

// Names of safetensors.
constexpr std::string_view file_type(Dtype t) { return traits_of(t).file_name; }
bool is_float(std::string_view file_type);
// The same as PyTorch and recipes call them, "float32" for "F32"; empty for what is no float type.
std::string_view file_type_of(std::string_view torch_name);
std::string_view torch_name_of(std::string_view file_type);
// `count` elements between float types; from and to do not overlap.
void convert(std::string_view from_type, const void* from, std::string_view to_type, void* to, int64_t count);

}  // namespace lockstep
