// A value for each name of an enumeration that counts from 0.
#pragma once

#include <array>
#include <cstddef>

namespace lockstep {

template <class Enum, class T, size_t kCount>
class EnumArray {
public:
    constexpr EnumArray() = default;
    constexpr explicit EnumArray(const T& each) { values_.fill(each); }

    constexpr T& operator[](Enum e) { return values_[static_cast<size_t>(e)]; }
    constexpr const T& operator[](Enum e) const { return values_[static_cast<size_t>(e)]; }
    constexpr auto begin() { return values_.begin(); }
    constexpr auto begin() const { return values_.begin(); }
    constexpr auto end() { return values_.end(); }
    constexpr auto end() const { return values_.end(); }
    bool operator==(const EnumArray&) const = default;

private:
    std::array<T, kCount> values_{};
};

}  // namespace lockstep
