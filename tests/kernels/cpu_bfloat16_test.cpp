// bfloat16 against its definition: every float that matters, scalar and vector conversions alike. float16's vector conversions
// against its scalar ones, which tests/base/elements_test.cpp holds to their definition.
#include "base/bfloat16.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "base/float16.h"
#include "kernels/cpu/elementwise.h"

namespace lockstep::kernels::cpu {
namespace baseline {
extern const Typed<Narrow> narrow_to;
extern const Typed<Widen> widen_from;
}  // namespace baseline
}  // namespace lockstep::kernels::cpu

namespace lockstep {
namespace {

Bf16 of_bits(int bits) {
    Bf16 b;
    b.bits = static_cast<uint16_t>(bits);
    return b;
}

// The nearest of all bfloat16 values, the even one of two; found by trying the two neighbours of the truncated value.
template <class F>
uint16_t nearest(F x) {
    const auto low = static_cast<int>(std::bit_cast<uint32_t>(static_cast<float>(x)) >> 16);
    int best = -1;
    double least = std::numeric_limits<double>::infinity();
    for (int bits : {low - 1, low, low + 1}) {
        const double candidate = static_cast<float>(of_bits(bits & 0xffff));
        // Past the largest finite value the next step counts as that value plus its ulp, as in IEEE 754.
        const double place = std::isinf(candidate) ? std::copysign(0x1p128, candidate) : candidate;
        const double distance = std::abs(place - static_cast<double>(x));
        if (distance < least || (distance == least && bits % 2 == 0)) least = distance, best = bits;
    }
    return static_cast<uint16_t>(best);
}

TEST(Bfloat16, EveryValueSurvives) {
    for (int bits = 0; bits < 0x10000; ++bits) {
        const float x = of_bits(bits);
        if (std::isnan(x)) {
            EXPECT_TRUE(std::isnan(static_cast<float>(Bf16(x)))) << bits;
            EXPECT_TRUE(std::isnan(static_cast<float>(Bf16(static_cast<double>(x))))) << bits;
        } else {
            EXPECT_EQ(Bf16(x).bits, bits);
            EXPECT_EQ(Bf16(static_cast<double>(x)).bits, bits);
        }
    }
}

TEST(Bfloat16, RoundsToNearestEven) {
    std::mt19937 random(1);
    for (int i = 0; i < 200000; ++i) {
        uint32_t u = random();
        if (i % 2) u = (u & 0xffff0000) | (0x7ffe + random() % 5);  // near the middle between two
        const float x = std::bit_cast<float>(u);
        if (!std::isfinite(x)) continue;
        EXPECT_EQ(Bf16(x).bits, nearest(x)) << std::hexfloat << x;
    }
}

TEST(Bfloat16, ADoubleIsRoundedOnce) {
    const double just_above = 1 + 0x1p-8 + 0x1p-40, just_below = 1 + 0x1p-8 - 0x1p-40;  // as floats both lie in the middle
    EXPECT_EQ(static_cast<float>(Bf16(just_above)), 1 + 0x1p-7f);
    EXPECT_EQ(static_cast<float>(Bf16(just_below)), 1.0f);
    EXPECT_EQ(static_cast<float>(Bf16(-just_above)), -1 - 0x1p-7f);
    EXPECT_EQ(static_cast<float>(Bf16(-just_below)), -1.0f);
}

template <class T>
void expect_vectors_convert_like_scalars(std::vector<float> x) {
    const auto n = static_cast<int64_t>(x.size());
    ThreadPool pool(2);
    using namespace kernels::cpu;
    for (const auto& [narrow, widen] : {std::pair{narrow_to, widen_from}, std::pair{baseline::narrow_to, baseline::widen_from}}) {
        std::vector<T> half(x.size());
        std::vector<float> back(x.size());
        narrow(pool, n, x.data(), half.data());
        widen(pool, n, half.data(), back.data());
        for (size_t i = 0; i < x.size(); ++i) {
            if (x[i] == x[i]) {
                EXPECT_EQ(half[i].bits, T(x[i]).bits) << x[i];
                EXPECT_EQ(back[i], static_cast<float>(half[i])) << x[i];
            } else {
                EXPECT_TRUE(std::isnan(static_cast<float>(half[i])) && std::isnan(back[i])) << i;
            }
        }
    }
}

TEST(Bfloat16, VectorsConvertLikeScalars) {
    std::vector<float> x = {0.0f, -0.0f, INFINITY, -INFINITY, NAN, std::bit_cast<float>(0x7fffffffu), 3.4e38f, 1e-45f, -1e-40f};
    std::mt19937 random(2);
    while (x.size() < 1003) x.push_back(std::bit_cast<float>(static_cast<uint32_t>(random())));
    expect_vectors_convert_like_scalars<Bf16>(x);
}

TEST(Float16, VectorsConvertLikeScalars) {
    std::vector<float> x = {0.0f,  -0.0f,    INFINITY, -INFINITY, NAN,   65504.0f, 65519.9f,     65520.0f,
                            -1e6f, 0x1p-24f, 0x1p-25f, -0x1p-25f, 3e-8f, 6.1e-5f,  0x1.ffcp-15f, 1e-45f};
    std::mt19937 random(3);
    while (x.size() < 20003) {  // of float16's range, half of them near the middle between two
        auto u = static_cast<uint32_t>(0x32000000u + random() % 0x16000000u);
        if (random() % 2) u = (u & 0xffffe000u) | static_cast<uint32_t>(0xffeu + random() % 5);
        x.push_back(std::bit_cast<float>(u | static_cast<uint32_t>(random() % 2) << 31));
    }
    expect_vectors_convert_like_scalars<F16>(x);
}

}  // namespace
}  // namespace lockstep
