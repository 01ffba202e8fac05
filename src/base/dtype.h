// Element types. No knowledge of training: which tensor has which type is decided by passes/set_precision.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace lockstep {

enum class Dtype { F32, F64, I32, BF16, F16, I8 };
inline constexpr Dtype kDtypes[] = {Dtype::F32, Dtype::F64, Dtype::I32, Dtype::BF16, Dtype::F16, Dtype::I8};

// Float types in which nothing is added up.
constexpr bool is_narrow(Dtype t) { return t == Dtype::BF16 || t == Dtype::F16; }
constexpr bool is_integer(Dtype t) { return t == Dtype::I32 || t == Dtype::I8; }
constexpr int64_t bytes_of(Dtype t) { return t == Dtype::F64 ? 8 : t == Dtype::I8 ? 1 : is_narrow(t) ? 2 : 4; }

constexpr std::string_view name_of(Dtype t) {
    switch (t) {
        case Dtype::F32: return "f32";
        case Dtype::F64: return "f64";
        case Dtype::I32: return "i32";
        case Dtype::BF16: return "bf16";
        case Dtype::F16: return "f16";
        case Dtype::I8: return "i8";
    }
    return "";
}

constexpr std::optional<Dtype> dtype_from(std::string_view name) {
    for (Dtype t : kDtypes) {
        if (name_of(t) == name) return t;
    }
    return std::nullopt;
}

}  // namespace lockstep
