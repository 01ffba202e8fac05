// Element types. No knowledge of training: which tensor has which type is decided by passes/set_precision.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace lockstep {

enum class Dtype { F32, F64, I32, BF16 };

constexpr int64_t bytes_of(Dtype t) { return t == Dtype::F64 ? 8 : t == Dtype::BF16 ? 2 : 4; }

constexpr std::string_view name_of(Dtype t) {
    return t == Dtype::F32 ? "f32" : t == Dtype::F64 ? "f64" : t == Dtype::I32 ? "i32" : "bf16";
}

constexpr std::optional<Dtype> dtype_from(std::string_view name) {
    for (Dtype t : {Dtype::F32, Dtype::F64, Dtype::I32, Dtype::BF16}) {
        if (name_of(t) == name) return t;
    }
    return std::nullopt;
}

}  // namespace lockstep
