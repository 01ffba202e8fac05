// Element types. No knowledge of training: which tensor has which type is decided by passes/set_precision. The C++ type that
// stores each is in base/storage.h.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string_view>

namespace lockstep {

enum class Dtype { F32, F64, I32, BF16, F16, I8, F8E4M3, F8E5M2, E8M0 };
inline constexpr Dtype kDtypes[] = {Dtype::F32, Dtype::F64,    Dtype::I32,    Dtype::BF16, Dtype::F16,
                                    Dtype::I8,  Dtype::F8E4M3, Dtype::F8E5M2, Dtype::E8M0};

struct DtypeTraits {
    std::string_view name;       // in program text
    std::string_view file_name;  // in safetensors
    std::string_view long_name;  // in recipes, as PyTorch has it
    int64_t bytes;
    // Of floats, those in which sums are taken, and those in which none is. Float8: codes of a tensor that has
    // scales. Scale: such scales, where they are powers of two. ops/float8.cpp says which ops make and read both; all others
    // only move them.
    enum class Kind { Integer, Wide, Narrow, Float8, Scale } kind;
    int least_exponent;  // of a float: its smallest positive value is 2 to this power
};

// A type without a row does not compile (-Wswitch), or throws.
constexpr DtypeTraits traits_of(Dtype t) {
    using enum DtypeTraits::Kind;
    switch (t) {
        case Dtype::F32: return {"f32", "F32", "float32", 4, Wide, -149};
        case Dtype::F64: return {"f64", "F64", "float64", 8, Wide, -1074};
        case Dtype::I32: return {"i32", "I32", "int32", 4, Integer, 0};
        case Dtype::BF16: return {"bf16", "BF16", "bfloat16", 2, Narrow, -133};
        case Dtype::F16: return {"f16", "F16", "float16", 2, Narrow, -24};
        case Dtype::I8: return {"i8", "I8", "int8", 1, Integer, 0};
        case Dtype::F8E4M3: return {"f8e4m3", "F8_E4M3", "float8_e4m3fn", 1, Float8, -9};
        case Dtype::F8E5M2: return {"f8e5m2", "F8_E5M2", "float8_e5m2", 1, Float8, -16};
        case Dtype::E8M0: return {"e8m0", "F8_E8M0", "float8_e8m0fnu", 1, Scale, -127};
    }
    throw std::logic_error("an element type without traits");
}

constexpr std::string_view name_of(Dtype t) { return traits_of(t).name; }
constexpr int64_t bytes_of(Dtype t) { return traits_of(t).bytes; }
constexpr bool is_integer(Dtype t) { return traits_of(t).kind == DtypeTraits::Kind::Integer; }
constexpr bool is_narrow(Dtype t) { return traits_of(t).kind == DtypeTraits::Kind::Narrow; }
constexpr bool is_wide(Dtype t) { return traits_of(t).kind == DtypeTraits::Kind::Wide; }
constexpr bool is_float(Dtype t) { return is_narrow(t) || is_wide(t); }  // in which ops compute
constexpr bool is_float8(Dtype t) { return traits_of(t).kind == DtypeTraits::Kind::Float8; }
// Codes, or scales of codes: each is worth something with the other only, and nothing sums them.
constexpr bool is_coded(Dtype t) { return is_float8(t) || traits_of(t).kind == DtypeTraits::Kind::Scale; }

// Of kDtypes those for which `is` holds, in their order.
template <bool (*is)(Dtype)>
consteval auto dtypes_that_are() {
    std::array<Dtype, static_cast<size_t>(std::count_if(std::begin(kDtypes), std::end(kDtypes), is))> out{};
    std::copy_if(std::begin(kDtypes), std::end(kDtypes), out.begin(), is);
    return out;
}
inline constexpr auto kFloatDtypes = dtypes_that_are<is_float>();

// Ops that move elements serve these. int8 is stored in blocks with a scale, and such a state is only used whole.
constexpr bool is_moved(Dtype t) { return t != Dtype::I8; }
inline constexpr auto kMovedDtypes = dtypes_that_are<is_moved>();

constexpr std::optional<Dtype> dtype_from(std::string_view name) {
    for (Dtype t : kDtypes) {
        if (name_of(t) == name) return t;
    }
    return std::nullopt;
}

}  // namespace lockstep
