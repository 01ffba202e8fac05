#include "base/elements.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "base/error.h"

namespace lockstep {
namespace {

constexpr std::pair<std::string_view, std::string_view> kFloats[] = {
    {"float64", "F64"}, {"float32", "F32"}, {"bfloat16", "BF16"}, {"float16", "F16"}};

double value(double x) { return x; }
float value(float x) { return x; }
float value(Bf16 x) { return x; }
float value(F16 x) { return x; }

void store(double x, double* to) { *to = x; }
void store(double x, float* to) { *to = static_cast<float>(x); }
void store(double x, Bf16* to) { *to = Bf16(x); }
void store(float x, Bf16* to) { *to = Bf16(x); }
void store(double x, F16* to) { *to = F16(x); }
void store(float x, F16* to) { *to = F16(x); }

template <class F>
void with_type(std::string_view dtype, const F& f) {
    if (dtype == "F64") return f(double{});
    if (dtype == "F32") return f(float{});
    if (dtype == "BF16") return f(Bf16{});
    if (dtype == "F16") return f(F16{});
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
