#include "base/elements.h"

#include <cstring>
#include <optional>
#include <string>
#include <type_traits>

#include "base/error.h"

namespace lockstep {
namespace {

std::optional<Dtype> float_where(std::string_view DtypeTraits::*name, std::string_view value) {
    for (const Dtype t : kFloatDtypes)
        if (traits_of(t).*name == value) return t;
    return std::nullopt;
}

// What a value is converted through: a narrow type is exact in float.
template <class T>
using Read = std::conditional_t<is_narrow(kDtypeOf<T>), float, T>;

template <class F>
void with_float(std::string_view file_type, const F& f) {
    const std::optional<Dtype> type = float_where(&DtypeTraits::file_name, file_type);
    if (!type) throw InternalError("elements: no float type is called " + std::string(file_type));
    with_storage(*type, [&]<class T>(std::type_identity<T>) {
        if constexpr (is_float(kDtypeOf<T>)) f(std::type_identity<T>());
    });
}

}  // namespace

bool is_float(std::string_view file_type) { return float_where(&DtypeTraits::file_name, file_type).has_value(); }

std::string_view file_type_of(std::string_view torch_name) {
    const std::optional<Dtype> type = float_where(&DtypeTraits::long_name, torch_name);
    return type ? traits_of(*type).file_name : "";
}

std::string_view torch_name_of(std::string_view file_type) {
    const std::optional<Dtype> type = float_where(&DtypeTraits::file_name, file_type);
    return type ? traits_of(*type).long_name : "";
}

void convert(std::string_view from_type, const void* from, std::string_view to_type, void* to, int64_t count) {
    with_float(from_type, [&]<class From>(std::type_identity<From>) {
        with_float(to_type, [&]<class To>(std::type_identity<To>) {
            if constexpr (std::is_same_v<From, To>) {
                std::memcpy(to, from, static_cast<size_t>(count) * sizeof(From));
            } else {
                for (int64_t i = 0; i < count; ++i)
                    static_cast<To*>(to)[i] = static_cast<To>(static_cast<Read<From>>(static_cast<const From*>(from)[i]));
            }
        });
    });
}

}  // namespace lockstep
