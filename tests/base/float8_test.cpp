// Codes, rounding and scales of float8 against arithmetic in double that is written here.
#include "base/float8.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/elements.h"
#include "base/float16.h"

namespace lockstep {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();

struct Format {
    int exponent_bits, mantissa_bits;
    double largest;
    bool has_infinity;
};
constexpr Format kE4M3 = {4, 3, 448, false}, kE5M2 = {5, 2, 57344, true};

double value_of(const Format& f, int code) {
    const int mantissas = 1 << f.mantissa_bits, exponents = 1 << f.exponent_bits, bias = exponents / 2 - 1;
    const int mantissa = code % mantissas, exponent = code / mantissas % exponents;
    const double sign = code >= 128 ? -1 : 1;
    if (f.has_infinity && exponent == exponents - 1) return mantissa == 0 ? sign * kInfinity : kNan;
    if (!f.has_infinity && code % 128 == 127) return kNan;
    if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - f.mantissa_bits);
    return sign * std::ldexp(mantissas + mantissa, exponent - bias - f.mantissa_bits);
}

// The nearest value, of two the one whose code is even.
int code_of(const Format& f, double x) {
    if (std::isnan(x)) return (std::signbit(x) ? 128 : 0) + 127;
    const double size = std::min(std::abs(x), f.largest);
    int best = 0;
    for (int code = 1; code < 127; ++code) {
        const double value = value_of(f, code);
        if (!std::isfinite(value)) continue;
        const double gain = std::abs(value_of(f, best) - size) - std::abs(value - size);
        if (gain > 0 || (gain == 0 && code % 2 == 0)) best = code;
    }
    return (std::signbit(x) ? 128 : 0) + best;
}

template <class T>
void expect_codes(const Format& f) {
    for (int code = 0; code < 256; ++code) {
        T x;
        x.bits = static_cast<uint8_t>(code);
        const auto got = static_cast<double>(static_cast<float>(x)), want = value_of(f, code);
        if (std::isnan(want)) {
            EXPECT_TRUE(std::isnan(got)) << code;
            EXPECT_TRUE(std::isnan(static_cast<float>(T(static_cast<float>(x)))));
            continue;
        }
        EXPECT_EQ(got, want) << code;
        EXPECT_EQ(std::signbit(got), code >= 128) << code;
        EXPECT_EQ(static_cast<double>(static_cast<float>(Bf16(static_cast<float>(x)))), want) << "bfloat16 holds it exactly";
        if (std::isfinite(want)) {
            EXPECT_EQ(T(static_cast<float>(want)).bits, code);
        }
    }
}

TEST(Float8, EveryCodeIsReadExactly) {
    expect_codes<F8E4M3>(kE4M3);
    expect_codes<F8E5M2>(kE5M2);
}

template <class T>
void expect_rounding(const Format& f, double x) {
    const auto as_float = static_cast<float>(x);
    ASSERT_EQ(int{T(as_float).bits}, code_of(f, as_float)) << as_float;
    ASSERT_EQ(int{T(x).bits}, code_of(f, x)) << x;
}

template <class T>
void expect_rounding(const Format& f) {
    std::mt19937 random(5);
    std::normal_distribution<double> normal;
    for (int i = 0; i < 150'000; ++i) expect_rounding<T>(f, normal(random));
    std::uniform_real_distribution<double> wide(-1.2 * f.largest, 1.2 * f.largest), exponent(-30, 20);
    for (int i = 0; i < 50'000; ++i) {
        expect_rounding<T>(f, wide(random));
        expect_rounding<T>(f, normal(random) * std::exp2(exponent(random)));
    }
    // Every code, what lies between two, and the numbers next to that.
    for (int code = 0; code < 126; ++code) {
        const double a = value_of(f, code), b = value_of(f, code + 1);
        if (!std::isfinite(b)) break;
        for (const double x : {a, (a + b) / 2}) {
            for (const double y : {x, std::nextafter(x, 1e9), std::nextafter(x, -1e9)}) {
                expect_rounding<T>(f, y);
                expect_rounding<T>(f, -y);
            }
            const auto single = static_cast<float>(x);
            expect_rounding<T>(f, std::nextafterf(single, 1e9F));
            expect_rounding<T>(f, -std::nextafterf(single, -1e9F));
        }
    }
    for (const double x :
         {0.0, -0.0, 1e-45, -1e-45, 1e-300, 1e300, -1e300, kInfinity, -kInfinity, kNan, -kNan, f.largest * 1.03125})
        expect_rounding<T>(f, x);
    EXPECT_EQ(static_cast<double>(static_cast<float>(T(kInfinity))), f.largest);
}

TEST(Float8, ValuesAreRoundedOnceToTheNearestAndSaturate) {
    expect_rounding<F8E4M3>(kE4M3);
    expect_rounding<F8E5M2>(kE5M2);
}

TEST(Float8, AnInfinityInDoubleStaysOneInFloat16) {
    EXPECT_EQ(static_cast<float>(F16(kInfinity)), INFINITY);
    EXPECT_EQ(static_cast<float>(F16(-kInfinity)), -INFINITY);
    EXPECT_TRUE(std::isnan(static_cast<float>(F16(kNan))));
}

TEST(Float8, ScalesAreThoseOfTorchao) {
    for (const Format& f : {kE4M3, kE5M2}) {
        const auto largest = static_cast<float>(f.largest);
        const auto scale = [&](double amax) { return scale_of(amax, largest, false); };
        EXPECT_EQ(scale(0), static_cast<float>(f.largest / 1e-12));
        EXPECT_EQ(scale(1e-30), scale(0));
        EXPECT_EQ(scale(1), largest);
        EXPECT_EQ(scale(500), static_cast<float>(f.largest / 500));
        EXPECT_EQ(scale(kInfinity), 0);
        EXPECT_TRUE(std::isnan(scale(kNan)));
        std::mt19937 random(3);
        std::uniform_real_distribution<double> exponent(-45, 45);
        for (int i = 0; i < 20'000; ++i) {
            const double amax = static_cast<float>(std::exp2(exponent(random)));
            const float plain = static_cast<float>(f.largest / std::max(amax, 1e-12));
            EXPECT_EQ(scale(amax), plain);
            EXPECT_EQ(static_cast<double>(scale_of(amax, largest, true)), std::exp2(std::ilogb(plain))) << amax;
        }
        EXPECT_EQ(scale_of(kInfinity, largest, true), 0);
        EXPECT_TRUE(std::isnan(scale_of(kNan, largest, true)));
        EXPECT_EQ(static_cast<double>(scale_of(3e42, largest, true)),
                  std::exp2(std::ilogb(static_cast<float>(f.largest / 3e42))));  // below 2^-126
    }
    EXPECT_EQ(scale_of(448, 448, true), 1);
    EXPECT_EQ(scale_of(449, 448, true), 0.5F);
}

TEST(Float8, TypesHaveTheirNamesAndAreNoFloatsInWhichOpsCompute) {
    EXPECT_EQ(dtype_from("f8e4m3"), Dtype::F8E4M3);
    EXPECT_EQ(dtype_from("f8e5m2"), Dtype::F8E5M2);
    EXPECT_EQ(file_type(Dtype::F8E4M3), "F8_E4M3");
    EXPECT_EQ(file_type(Dtype::F8E5M2), "F8_E5M2");
    for (const Dtype t : {Dtype::F8E4M3, Dtype::F8E5M2}) {
        EXPECT_TRUE(is_float8(t) && is_moved(t)) << name_of(t);
        EXPECT_FALSE(is_float(t) || is_narrow(t) || is_integer(t)) << name_of(t);
        EXPECT_EQ(bytes_of(t), 1);
        const bool is_e4m3 = t == Dtype::F8E4M3;
        EXPECT_EQ(std::ldexp(1.0, traits_of(t).least_exponent), value_of(is_e4m3 ? kE4M3 : kE5M2, 1));
        char code = 0;
        set_element(&code, t, 0, -3.3);
        EXPECT_EQ(element(&code, t, 0), value_of(is_e4m3 ? kE4M3 : kE5M2, code_of(is_e4m3 ? kE4M3 : kE5M2, -3.3)));
    }
}

// ---- scales of blocks

TEST(E8M0, HoldsAPowerOfTwoOrNan) {
    for (int bits = 0; bits < 256; ++bits) {
        E8M0 s;
        s.bits = static_cast<uint8_t>(bits);
        const auto value = static_cast<double>(static_cast<float>(s)), by = static_cast<double>(s.reciprocal());
        if (bits == 255) {
            EXPECT_TRUE(std::isnan(value) && std::isnan(by));
            continue;
        }
        EXPECT_EQ(value, std::ldexp(1.0, bits - 127)) << bits;
        EXPECT_EQ(by, std::ldexp(1.0, 127 - bits)) << bits;
        EXPECT_EQ(E8M0(value).bits, bits);
        EXPECT_EQ(E8M0(static_cast<float>(value)).bits, bits);
        EXPECT_EQ(E8M0(value * 1.99).bits, bits) << "rounded down";
    }
    for (const double x : {0.0, -0.0, -1.0, kInfinity, -kInfinity, kNan}) EXPECT_EQ(E8M0(x).bits, 255) << x;
    EXPECT_EQ(E8M0(1e-300).bits, 0);
    EXPECT_EQ(E8M0(1e300).bits, 254);
    EXPECT_EQ(dtype_from("e8m0"), Dtype::E8M0);
    EXPECT_EQ(file_type(Dtype::E8M0), "F8_E8M0");
    EXPECT_TRUE(is_coded(Dtype::E8M0) && is_coded(Dtype::F8E4M3) && is_moved(Dtype::E8M0));
    EXPECT_FALSE(is_float8(Dtype::E8M0) || is_float(Dtype::E8M0) || is_integer(Dtype::E8M0) || is_coded(Dtype::F32));
}

// floor: the power of two of amax by that of the largest value. rceil: the least with which the largest value is not exceeded.
TEST(E8M0, ScalesOfBlocksAreThoseOfTheirDefinition) {
    using enum BlockRounding;
    const auto exponent = [](double amax, double largest, BlockRounding rounding) {
        if (rounding == floor) return std::ilogb(amax) - std::ilogb(largest);
        int e = -200;
        while (std::ldexp(largest, e) < amax) ++e;
        return e;
    };
    std::mt19937 random(4);
    std::uniform_real_distribution<double> powers(-126, 127);
    for (const Format& f : {kE4M3, kE5M2}) {
        const auto largest = static_cast<float>(f.largest);
        std::vector<float> sizes = {448,
                                    449,
                                    std::nextafter(448.0F, 449.0F),
                                    std::nextafter(448.0F, 0.0F),
                                    256,
                                    511,
                                    512,
                                    57344,
                                    57345,
                                    0x1p-118F,
                                    0x1.cp-118F,
                                    0x1.dp-118F,
                                    0x1p-119F,
                                    0x1.dp-119F,
                                    0x1p-126F,
                                    0x1p-149F};
        for (int i = 0; i < 20'000; ++i) sizes.push_back(static_cast<float>(std::exp2(powers(random))));
        for (const float amax : sizes) {
            for (const BlockRounding rounding : {floor, rceil}) {
                const int e = exponent(static_cast<double>(amax), f.largest, rounding);
                EXPECT_EQ(block_scale(static_cast<double>(amax), largest, rounding).bits, std::clamp(e, -127, 127) + 127) << amax;
            }
        }
        for (const BlockRounding rounding : {floor, rceil}) {
            EXPECT_EQ(block_scale(0, largest, rounding).bits, 0);
            EXPECT_EQ(block_scale(kInfinity, largest, rounding).bits, 255);
            EXPECT_EQ(block_scale(kNan, largest, rounding).bits, 255);
            EXPECT_EQ(block_scale(1e300, largest, rounding).bits, 254);
        }
    }
}

}  // namespace
}  // namespace lockstep
