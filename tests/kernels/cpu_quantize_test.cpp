// Blocks of int8 against the format by hand, in double, for every storage type and up to three threads.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "base/quantized.h"
#include "kernels/cpu/quantize.h"

namespace lockstep::kernels::cpu {

namespace baseline {
extern const Typed<Quantize> quantize;
extern const Typed<Dequantize> dequantize;
}  // namespace baseline

namespace {

constexpr int64_t kBlocks = 7, kElements = kBlocks * kQuantizedBlock;

// Sizes from the subnormal ones to the largest; a block of zeros, one element alone, and the border at 127 / 128.
template <class T>
std::vector<T> values(Dtype type) {
    std::mt19937 random(3);
    std::normal_distribution<double> normal;
    const int spread = type == Dtype::F16 ? 12 : 110;
    std::vector<T> out(static_cast<size_t>(kElements));
    for (int64_t i = 0; i < kElements; ++i) {
        const int64_t block = i / kQuantizedBlock;
        const double scale = std::ldexp(1.0, static_cast<int>((block - 3) * spread / 3));
        out[static_cast<size_t>(i)] = T(static_cast<float>(normal(random) * scale));
    }
    for (int64_t i = 0; i < kQuantizedBlock; ++i) {
        out[static_cast<size_t>(i)] = T(0.0f);
        out[static_cast<size_t>(kQuantizedBlock + i)] = T(i == 9 ? -127.0f : 0.0f);
        out[static_cast<size_t>(2 * kQuantizedBlock + i)] = T(i == 8 ? 128.0f : static_cast<float>(i % 3) - 0.5f);
    }
    return out;
}

template <class T>
void expect_format(Dtype type) {
    const std::vector<T> x = values<T>(type);
    const auto as_double = [](T v) { return static_cast<double>(static_cast<float>(v)); };
    const int least = least_exponent(type);
    for (int threads : {1, 2, 3}) {
        ThreadPool pool(threads);
        for (const auto& [quantizing, dequantizing] :
             {std::pair<Quantize<T>*, Dequantize<T>*>{quantize, dequantize},
              std::pair<Quantize<T>*, Dequantize<T>*>{baseline::quantize, baseline::dequantize}}) {
            std::vector<int8_t> q(static_cast<size_t>(quantized_bytes(kElements))), again = q;
            std::vector<T> back(x.size());
            quantizing(pool, kBlocks, least, x.data(), q.data());
            dequantizing(pool, 1, kBlocks, q.data(), back.data());
            quantizing(pool, kBlocks, least, back.data(), again.data());
            EXPECT_EQ(q, again) << "what was dequantized is quantized to the same bytes";
            for (int64_t b = 0; b < kBlocks; ++b) {
                const int8_t* bytes = q.data() + b * (kQuantizedBlock + 1);
                double most = 0;
                for (int64_t k = 0; k < kQuantizedBlock; ++k)
                    most = std::max(most, std::abs(as_double(x[static_cast<size_t>(b * kQuantizedBlock + k)])));
                const int e = bytes[kQuantizedBlock];
                EXPECT_LE(most, 127 * std::ldexp(1.0, e));
                EXPECT_TRUE(e == least || most > 127 * std::ldexp(1.0, e - 1)) << "a smaller scale would do";
                for (int64_t k = 0; k < kQuantizedBlock; ++k) {
                    const auto at = static_cast<size_t>(b * kQuantizedBlock + k);
                    EXPECT_EQ(bytes[k], std::nearbyint(std::ldexp(as_double(x[at]), -e))) << b << " " << k;
                    EXPECT_EQ(as_double(back[at]), std::ldexp(static_cast<double>(bytes[k]), e)) << "exact in the type";
                }
            }
        }
    }
}

TEST(CpuQuantize, IsTheFormat) {
    expect_format<float>(Dtype::F32);
    expect_format<Bf16>(Dtype::BF16);
    expect_format<F16>(Dtype::F16);
}

// So that the norm sees it, and the step does not count.
TEST(CpuQuantize, WhatIsNoFiniteNumberMakesItsBlockNone) {
    ThreadPool pool(1);
    for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()}) {
        std::vector<float> x(static_cast<size_t>(2 * kQuantizedBlock), 1.0f), back(x.size());
        x[5] = bad;
        std::vector<int8_t> q(static_cast<size_t>(quantized_bytes(2 * kQuantizedBlock)));
        quantize(pool, 2, least_exponent(Dtype::F32), x.data(), q.data());
        dequantize(pool, 1, 2, q.data(), back.data());
        for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(std::isnan(back[i]), i < static_cast<size_t>(kQuantizedBlock)) << i;
    }
}

}  // namespace
}  // namespace lockstep::kernels::cpu
