// Elements of the float types: one by one from memory whose type is known at run time, and rows of them turned into another type,
// exact where the wider type holds the value, else rounded once, to nearest, ties to even. Not for the step path.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/bfloat16.h"
#include "base/dtype.h"

namespace lockstep {

inline double element(const void* data, Dtype type, int64_t i) {
    switch (type) {
        case Dtype::F64: return static_cast<const double*>(data)[i];
        case Dtype::F32: return static_cast<double>(static_cast<const float*>(data)[i]);
        case Dtype::BF16: return static_cast<double>(static_cast<const Bf16*>(data)[i]);
        case Dtype::I32: break;
    }
    return static_cast<double>(static_cast<const int32_t*>(data)[i]);
}

// bfloat16 is rounded from float32, as the step's casts round it.
inline void set_element(void* data, Dtype type, int64_t i, double value) {
    switch (type) {
        case Dtype::F64: static_cast<double*>(data)[i] = value; break;
        case Dtype::F32: static_cast<float*>(data)[i] = static_cast<float>(value); break;
        case Dtype::BF16: static_cast<Bf16*>(data)[i] = Bf16(static_cast<float>(value)); break;
        case Dtype::I32: static_cast<int32_t*>(data)[i] = static_cast<int32_t>(value); break;
    }
}

// Names of safetensors: "F32", "F64", "BF16", and "F16", in which files may be written, but nothing is computed.
constexpr std::string_view file_type(Dtype t) {
    return t == Dtype::F64 ? "F64" : t == Dtype::BF16 ? "BF16" : t == Dtype::I32 ? "I32" : "F32";
}
bool is_float(std::string_view file_type);
// The same as PyTorch and recipes call them, "float32" for "F32"; empty for what is no float type.
std::string_view file_type_of(std::string_view torch_name);
std::string_view torch_name_of(std::string_view file_type);
// `count` elements between float types; from and to do not overlap.
void convert(std::string_view from_type, const void* from, std::string_view to_type, void* to, int64_t count);

}  // namespace lockstep
