// Elements of the float types: one by one from memory whose type is known at run time, and rows of them turned into another type,
// exact where the wider type holds the value, else rounded once, to nearest, ties to even. Not for the step path.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/bfloat16.h"
#include "base/dtype.h"
#include "base/float16.h"

namespace lockstep {

inline double element(const void* data, Dtype type, int64_t i) {
    switch (type) {
        case Dtype::F64: return static_cast<const double*>(data)[i];
        case Dtype::F32: return static_cast<double>(static_cast<const float*>(data)[i]);
        case Dtype::BF16: return static_cast<double>(static_cast<const Bf16*>(data)[i]);
        case Dtype::F16: return static_cast<double>(static_cast<const F16*>(data)[i]);
        case Dtype::I8: return static_cast<double>(static_cast<const int8_t*>(data)[i]);
        case Dtype::I32: break;
    }
    return static_cast<double>(static_cast<const int32_t*>(data)[i]);
}

// bfloat16 and float16 are rounded from float32, as the step's casts round them.
inline void set_element(void* data, Dtype type, int64_t i, double value) {
    switch (type) {
        case Dtype::F64: static_cast<double*>(data)[i] = value; break;
        case Dtype::F32: static_cast<float*>(data)[i] = static_cast<float>(value); break;
        case Dtype::BF16: static_cast<Bf16*>(data)[i] = Bf16(static_cast<float>(value)); break;
        case Dtype::F16: static_cast<F16*>(data)[i] = F16(static_cast<float>(value)); break;
        case Dtype::I32: static_cast<int32_t*>(data)[i] = static_cast<int32_t>(value); break;
        case Dtype::I8: static_cast<int8_t*>(data)[i] = static_cast<int8_t>(value); break;
    }
}

// Names of safetensors.
constexpr std::string_view file_type(Dtype t) {
    switch (t) {
        case Dtype::F32: return "F32";
        case Dtype::F64: return "F64";
        case Dtype::I32: return "I32";
        case Dtype::BF16: return "BF16";
        case Dtype::F16: return "F16";
        case Dtype::I8: return "I8";
    }
    return "";
}
bool is_float(std::string_view file_type);
// The same as PyTorch and recipes call them, "float32" for "F32"; empty for what is no float type.
std::string_view file_type_of(std::string_view torch_name);
std::string_view torch_name_of(std::string_view file_type);
// `count` elements between float types; from and to do not overlap.
void convert(std::string_view from_type, const void* from, std::string_view to_type, void* to, int64_t count);

}  // namespace lockstep
