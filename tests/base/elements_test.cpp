// Element types of files against their definitions, and at the edges of each format.
#include "base/elements.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "base/random.h"

namespace lockstep {
namespace {

template <class To, class From>
To converted(const char* from_dtype, From x, const char* to_dtype) {
    To y{};
    convert(from_dtype, &x, to_dtype, &y, 1);
    return y;
}

float from_half(uint16_t bits) { return converted<float>("F16", bits, "F32"); }

float half_value(uint16_t bits) {
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const float size = exponent == 31 && fraction != 0 ? NAN
                       : exponent == 31                ? INFINITY
                       : exponent == 0                 ? std::ldexp(static_cast<float>(fraction), -24)
                                                       : std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
    return (bits & 0x8000) != 0 ? -size : size;
}

// The half next to x; of two as near the even one.
float nearest_half(double x) {
    if (std::abs(x) >= 65520) return std::copysign(INFINITY, static_cast<float>(x));
    int exponent = 0;
    std::frexp(x, &exponent);
    const int unit = std::max(exponent - 1, -14) - 10;  // of the last bit
    return static_cast<float>(std::copysign(std::ldexp(std::nearbyint(std::ldexp(std::abs(x), -unit)), unit), x));
}

TEST(Elements, HalfReadsEveryBitPattern) {
    for (int b = 0; b < 65536; ++b) {
        const auto bits = static_cast<uint16_t>(b);
        const float expected = half_value(bits);
        if (std::isnan(expected)) {
            EXPECT_TRUE(std::isnan(from_half(bits))) << b;
            continue;
        }
        EXPECT_EQ(from_half(bits), expected) << b;
        EXPECT_EQ(converted<uint16_t>("F32", expected, "F16"), bits) << b;  // and back
        EXPECT_EQ(converted<uint16_t>("F16", bits, "F16"), bits);
    }
}

TEST(Elements, RoundsToNearestEven) {
    for (uint64_t i = 0; i < 200000; ++i) {
        const auto x = std::bit_cast<float>(static_cast<uint32_t>(splitmix64(i)));
        if (std::isnan(x)) continue;
        const auto half = converted<uint16_t>("F32", x, "F16");
        EXPECT_EQ(half_value(half), nearest_half(x)) << x;
        EXPECT_EQ(half >> 15 == 1, std::signbit(x)) << x;
        EXPECT_EQ(converted<uint16_t>("F64", double{x}, "F16"), half) << x;
        // bfloat16 by the two neighbours.
        const uint32_t bits = std::bit_cast<uint32_t>(x);
        const auto got = converted<uint16_t>("F32", x, "BF16");
        const float below = std::bit_cast<float>(bits & 0xffff0000u),
                    above = std::bit_cast<float>((bits & 0xffff0000u) + 0x10000u);
        const double to_below = std::abs(double{x} - below), to_above = std::abs(double{above} - x);
        if (std::isfinite(above)) {
            const bool down = to_below < to_above || (to_below == to_above && (bits >> 16 & 1) == 0);
            EXPECT_EQ(got, (down ? bits : bits + 0x10000u) >> 16) << x;
        }
        EXPECT_EQ(converted<uint16_t>("F64", double{x}, "BF16"), got) << x;
    }
}

TEST(Elements, WiderTypesKeepTheValue) {
    EXPECT_EQ(converted<float>("BF16", uint16_t{0xc049}, "F32"), -3.140625f);
    EXPECT_EQ(converted<double>("F32", 0.1f, "F64"), double{0.1f});
    EXPECT_EQ(converted<float>("F64", 0.1, "F32"), 0.1f);
    EXPECT_EQ(converted<uint16_t>("F32", 1e10f, "F16"), 0x7c00);
    EXPECT_EQ(converted<uint16_t>("F32", -std::numeric_limits<float>::infinity(), "BF16"), 0xff80);
    EXPECT_TRUE(std::isnan(converted<float>("BF16", converted<uint16_t>("F32", NAN, "BF16"), "F32")));
    EXPECT_TRUE(is_float("BF16") && is_float("F64") && !is_float("I32"));
    EXPECT_EQ(file_type_of("bfloat16"), "BF16");
    EXPECT_EQ(torch_name_of("F16"), "float16");
    EXPECT_EQ(file_type_of("int8"), "");
}

}  // namespace
}  // namespace lockstep
