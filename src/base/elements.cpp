#include "base/elements.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "base/error.h"

namespace lockstep {
namespace {

constexpr std::pair<std::string_view, std::string_view> kFloats[] = {
    {"float64", "F64"}, {"float32", "F32"}, {"bfloat16", "BF16"}, {"float16", "F16"}};

struct Half {  // IEEE, as its bits
    uint16_t bits;
};

double value(double x) { return x; }
float value(float x) { return x; }
float value(Bf16 x) { return x; }
float value(Half x) {
    const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000) << 16, rest = static_cast<uint32_t>(x.bits & 0x7fff) << 13;
    const float magnitude = (x.bits & 0x7c00) == 0x7c00 ? std::bit_cast<float>(rest | 0x7f800000)  // infinite, or none
                                                        : std::bit_cast<float>(rest) * 0x1p112f;   // moves the exponent's bias
    return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
}

// x rounded to the 11 significant bits of a half, no finer than its smallest step, ties to even; exact in double.
double rounded_to_half(double x) {
    if (x == 0 || !std::isfinite(x)) return x;
    int exponent = 0;
    std::frexp(x, &exponent);
    const double unit = std::ldexp(1.0, std::max(exponent - 11, -24));
    return std::nearbyint(x / unit) * unit;
}

void store(double x, double* to) { *to = x; }
void store(double x, float* to) { *to = static_cast<float>(x); }
void store(double x, Bf16* to) { *to = Bf16(x); }
void store(float x, Bf16* to) { *to = Bf16(x); }
void store(double x, Half* to) {
    const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
    if (std::isnan(x)) return void(to->bits = 0x7e00);
    const double y = std::abs(rounded_to_half(x));
    if (y > 65504) return void(to->bits = sign | 0x7c00);
    if (y < std::ldexp(1.0, -14)) return void(to->bits = static_cast<uint16_t>(sign | static_cast<int>(std::ldexp(y, 24))));
    const int exponent = std::ilogb(y);
    const int mantissa = static_cast<int>(std::ldexp(y, 10 - exponent)) - 1024;
    to->bits = static_cast<uint16_t>(sign | (exponent + 15) << 10 | mantissa);
}

template <class F>
void with_type(std::string_view dtype, const F& f) {
    if (dtype == "F64") return f(double{});
    if (dtype == "F32") return f(float{});
    if (dtype == "BF16") return f(Bf16{});
    if (dtype == "F16") return f(Half{});
    throw InternalError("elements: no float type is called " + std::string(dtype));
}

}  // namespace

bool is_float(std::string_view file_type) { return !torch_name_of(file_type).empty(); }

std::string_view file_type_of(std::string_view torch_name) {
    for (const auto& [torch, file] : kFloats) {
        if (torch == torch_name) return file;
    }
    return "";
}

std::string_view torch_name_of(std::string_view file_type) {
    for (const auto& [torch, file] : kFloats) {
        if (file == file_type) return torch;
    }
    return "";
}

void convert(std::string_view from_dtype, const void* from, std::string_view to_dtype, void* to, int64_t count) {
    with_type(from_dtype, [&](auto from_type) {
        with_type(to_dtype, [&](auto to_type) {
            using From = decltype(from_type);
            using To = decltype(to_type);
            if constexpr (std::is_same_v<From, To>) {
                std::memcpy(to, from, static_cast<size_t>(count) * sizeof(From));
            } else {
                for (int64_t i = 0; i < count; ++i) store(value(static_cast<const From*>(from)[i]), static_cast<To*>(to) + i);
            }
        });
    });
}

}  // namespace lockstep
