// Rounding to bfloat16 at random: what it may give, its mean, and that a number falls with it that rounding to nearest keeps.
#include "base/random_rounding.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "base/bfloat16.h"

namespace lockstep::testing {
namespace {

float rounded(float v, uint32_t bits) { return std::bit_cast<float>(rounded_to_bf16(std::bit_cast<uint32_t>(v), bits)); }

TEST(RandomRounding, GivesTheValueBelowOrAboveAndTheSameOfADouble) {
    std::mt19937 random(1);
    for (int i = 0; i < 200'000; ++i) {
        const auto bits = static_cast<uint32_t>(random());
        auto pattern = static_cast<uint32_t>(random());
        if (i % 3 == 0) pattern &= 0x807fffff;  // near the least values
        const auto v = std::bit_cast<float>(pattern);
        if (!std::isfinite(v)) continue;
        const float got = rounded(v, bits), below = std::bit_cast<float>(pattern & 0xffff0000u),
                    above = std::bit_cast<float>((pattern & 0xffff0000u) + 0x10000u);
        EXPECT_TRUE(got == below || got == above) << v;
        EXPECT_TRUE(got == v || v != below) << "what is a bfloat16 stays: " << v;
        const double wide = rounded_to_bf16(static_cast<double>(v), bits);
        EXPECT_EQ(static_cast<float>(wide), got) << v << ", bits " << bits;
    }
}

TEST(RandomRounding, KeepsWhatIsNoFiniteNumber) {
    for (const uint32_t bits : {0u, 0x12345678u, 0xffffffffu}) {
        EXPECT_EQ(rounded(INFINITY, bits), INFINITY);
        EXPECT_EQ(rounded(-INFINITY, bits), -INFINITY);
        EXPECT_TRUE(std::isnan(rounded(NAN, bits)));
        EXPECT_EQ(rounded_to_bf16(static_cast<double>(INFINITY), bits), INFINITY);
        EXPECT_TRUE(std::isnan(rounded_to_bf16(static_cast<double>(NAN), bits)));
        EXPECT_EQ(rounded(0.0f, bits), 0.0f);
        EXPECT_EQ(rounded_to_bf16(0.0, bits), 0.0);
    }
}

// Over many steps and over many elements. The deviation of a mean of n is at most a unit / (2 sqrt(n)); five of them are allowed.
TEST(RandomRounding, HasTheMeanOfWhatIsRounded) {
    constexpr int kDraws = 40'000;
    for (const float v : {1.0f + 0x1p-10f, 1.0f + 0x1p-8f, 0.3f, 7.77e-12f, 1.9999f, 0x1p-130f * 1.3f}) {
        int exponent = 0;
        std::frexp(v, &exponent);
        const double unit = std::ldexp(1.0, std::max(exponent - 8, -133));
        double over_steps = 0, over_elements = 0;
        for (int i = 0; i < kDraws; ++i) {
            const uint64_t of_step = rounding_row(rounding_noise(3, i), 17, 2, 5),
                           of_all = rounding_row(rounding_noise(3, 1), 17, 2, 0);
            over_steps += static_cast<double>(rounded(v, dropout_bits(of_step, 5)));
            over_elements += static_cast<double>(rounded(v, dropout_bits(of_all, static_cast<uint32_t>(i))));
        }
        const double allowed = 5 * unit / (2 * std::sqrt(kDraws));
        EXPECT_NEAR(over_steps / kDraws, v, allowed);
        EXPECT_NEAR(over_elements / kDraws, v, allowed);
    }
}

TEST(RandomRounding, DrawsOtherBitsForEachSeedStepParameterLayerAndElement) {
    const uint64_t row = rounding_row(rounding_noise(1, 1), 1, 1, 1);
    EXPECT_NE(row, rounding_row(rounding_noise(2, 1), 1, 1, 1));
    EXPECT_NE(row, rounding_row(rounding_noise(1, 2), 1, 1, 1));
    EXPECT_NE(row, rounding_row(rounding_noise(1, 1), 2, 1, 1));
    EXPECT_NE(row, rounding_row(rounding_noise(1, 1), 1, 2, 1));
    EXPECT_EQ(row, rounding_row(rounding_noise(1, 1), 1, 1, 2));
    EXPECT_NE(row, rounding_row(rounding_noise(1, 1), 1, 1, int64_t{1} << 32 | 1));
    EXPECT_NE(dropout_bits(row, 1), dropout_bits(row, 2));
}

// A second moment without gradients: 0.999 of it a step, which is less than half a unit.
TEST(RandomRounding, LetsFallWhatNearestKeeps) {
    constexpr int kElements = 2'000, kSteps = 1'000;
    Bf16 nearest(1.0f);
    double sum = 0;
    for (int i = 0; i < kElements; ++i) {
        float v = 1;
        for (int step = 1; step <= kSteps; ++step)
            v = rounded(0.999f * v, dropout_bits(rounding_row(rounding_noise(1, step), 1, 1, i), static_cast<uint32_t>(i)));
        sum += static_cast<double>(v);
    }
    for (int step = 0; step < kSteps; ++step) nearest = Bf16(0.999f * nearest);
    EXPECT_EQ(static_cast<float>(nearest), 1.0f);
    EXPECT_NEAR(sum / kElements, std::pow(0.999, kSteps), 0.005);
}

}  // namespace
}  // namespace lockstep::testing
