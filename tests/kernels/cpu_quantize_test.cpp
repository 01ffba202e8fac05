// Blocks of int8 and int4 against the format by hand, in double, for every storage type and up to three threads.
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

constexpr int64_t kBlocks = 7;

// Sizes from the subnormal ones to the largest; a block of zeros, one element alone, and the border of the largest integer.
template <class T>
std::vector<T> values(Dtype type, int64_t block) {
    std::mt19937 random(3);
    std::normal_distribution<double> normal;
    const int spread = type == Dtype::F16 ? 12 : 110;
    std::vector<T> out(static_cast<size_t>(kBlocks * block));
    for (int64_t i = 0; i < kBlocks * block; ++i) {
        const double scale = std::ldexp(1.0, static_cast<int>((i / block - 3) * spread / 3));
        out[static_cast<size_t>(i)] = T(static_cast<float>(normal(random) * scale));
    }
    const float border = block == quantized_block(4) ? 7 : 127;
    for (int64_t i = 0; i < block; ++i) {
        out[static_cast<size_t>(i)] = T(0.0f);
        out[static_cast<size_t>(block + i)] = T(i == 9 ? -border : 0.0f);
        out[static_cast<size_t>(2 * block + i)] = T(i == 8 ? border + 1 : static_cast<float>(i % 3) - 0.5f);
    }
    return out;
}

// By the words of base/quantized.h.
int element(const int8_t* block, int64_t k, int64_t bits) {
    if (bits == 8) return block[k];
    return k < 16 ? static_cast<int8_t>(block[k] << 4) >> 4 : block[k - 16] >> 4;
}

template <class T>
void expect_format(Dtype type, int64_t bits) {
    const int64_t block = quantized_block(bits), bytes = quantized_bytes(block, bits), elements = kBlocks * block;
    const double largest = bits == 8 ? 127 : 7;
    const std::vector<T> x = values<T>(type, block);
    const auto as_double = [](T v) { return static_cast<double>(static_cast<float>(v)); };
    const Quantization how{bits, least_exponent(type)};
    for (int threads : {1, 2, 3}) {
        ThreadPool pool(threads);
        for (const auto& [quantizing, dequantizing] :
             {std::pair<Quantize<T>*, Dequantize<T>*>{quantize, dequantize},
              std::pair<Quantize<T>*, Dequantize<T>*>{baseline::quantize, baseline::dequantize}}) {
            std::vector<int8_t> q(static_cast<size_t>(quantized_bytes(elements, bits))), again = q;
            std::vector<T> back(x.size());
            quantizing(pool, elements, how, x.data(), q.data());
            dequantizing(pool, 1, elements, bits, q.data(), back.data());
            quantizing(pool, elements, how, back.data(), again.data());
            EXPECT_EQ(q, again) << "what was dequantized is quantized to the same bytes";
            for (int64_t b = 0; b < kBlocks; ++b) {
                const int8_t* at = q.data() + b * bytes;
                double most = 0;
                for (int64_t k = 0; k < block; ++k)
                    most = std::max(most, std::abs(as_double(x[static_cast<size_t>(b * block + k)])));
                const int e = at[bytes - 1];
                EXPECT_LE(most, largest * std::ldexp(1.0, e));
                EXPECT_TRUE(e == how.least || most > largest * std::ldexp(1.0, e - 1)) << "a smaller scale would do";
                for (int64_t k = 0; k < block; ++k) {
                    const auto i = static_cast<size_t>(b * block + k);
                    EXPECT_EQ(element(at, k, bits), std::nearbyint(std::ldexp(as_double(x[i]), -e))) << b << " " << k;
                    EXPECT_EQ(as_double(back[i]), std::ldexp(static_cast<double>(element(at, k, bits)), e))
                        << "exact in the type";
                }
            }
        }
    }
}

TEST(CpuQuantize, IsTheFormat) {
    for (int64_t bits : {8, 4}) {
        expect_format<float>(Dtype::F32, bits);
        expect_format<Bf16>(Dtype::BF16, bits);
        expect_format<F16>(Dtype::F16, bits);
    }
}

// Up or down, each time to a neighbour; over many steps the mean is the value. The standard error of a mean of kSteps draws is
// half a quantum / sqrt(kSteps) at most.
TEST(CpuQuantize, RoundsAtRandomWithoutBias) {
    constexpr int kSteps = 4000;
    for (const int64_t bits : {8, 4}) {
        const int64_t elements = 4 * quantized_block(bits);
        std::mt19937 random(7);
        std::normal_distribution<float> normal;
        std::vector<float> x(static_cast<size_t>(elements)), back(x.size());
        for (float& v : x) v = normal(random);
        std::fill(x.begin(), x.begin() + 8, 0.3f);  // equal values are rounded one by one
        std::vector<int8_t> q(static_cast<size_t>(quantized_bytes(elements, bits)));
        std::vector<double> sum(x.size());
        ThreadPool one(1), three(3);
        bool differ = false;
        for (int step = 0; step < kSteps; ++step) {
            Quantization how{bits, least_exponent(Dtype::F32), true, rounding_key(11, step)};
            quantize(step < 5 ? three : one, elements, how, x.data(), q.data());
            if (step < 5) {
                std::vector<int8_t> again(q.size()), plain(q.size());
                baseline::quantize(one, elements, how, x.data(), again.data());
                EXPECT_EQ(q, again) << "the same for every number of threads and instruction set";
            }
            dequantize(one, 1, elements, bits, q.data(), back.data());
            for (size_t i = 0; i < x.size(); ++i) sum[i] += static_cast<double>(back[i]);
            differ = differ || back[0] != back[1];
        }
        EXPECT_TRUE(differ);
        const int64_t bytes = quantized_bytes(quantized_block(bits), bits);
        double worst = 0, square = 0;
        for (size_t i = 0; i < x.size(); ++i) {
            const int e = q[static_cast<size_t>((static_cast<int64_t>(i) / quantized_block(bits) + 1) * bytes - 1)];
            const double quantum = std::ldexp(1.0, e), off = sum[i] / kSteps - static_cast<double>(x[i]);
            EXPECT_LT(std::abs(static_cast<double>(back[i] - x[i])), quantum);
            worst = std::max(worst, std::abs(off) / quantum), square += off * off / quantum / quantum;
        }
        EXPECT_LT(worst, 5 * 0.5 / std::sqrt(kSteps));
        EXPECT_LT(std::sqrt(square / static_cast<double>(x.size())), 0.5 / std::sqrt(kSteps));
    }
}

// So that the norm sees it, and the step does not count.
TEST(CpuQuantize, WhatIsNoFiniteNumberMakesItsBlockNone) {
    ThreadPool pool(1);
    for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()}) {
        for (const int64_t bits : {8, 4}) {
            for (const bool at_random : {false, true}) {
                const int64_t block = quantized_block(bits);
                std::vector<float> x(static_cast<size_t>(2 * block), 1.0f), back(x.size());
                x[5] = bad;
                std::vector<int8_t> q(static_cast<size_t>(quantized_bytes(2 * block, bits)));
                quantize(pool, 2 * block, {bits, least_exponent(Dtype::F32), at_random}, x.data(), q.data());
                dequantize(pool, 1, 2 * block, bits, q.data(), back.data());
                for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(std::isnan(back[i]), i < static_cast<size_t>(block)) << i;
            }
        }
    }
}

}  // namespace
}  // namespace lockstep::kernels::cpu
