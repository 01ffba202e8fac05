// Compiled once per instruction set.
#include "kernels/cpu/quantize.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "base/quantized.h"
#include "kernels/cpu/simd.h"

namespace lockstep::kernels::cpu::LOCKSTEP_ISA {

extern const Typed<Quantize> quantize;
extern const Typed<Dequantize> dequantize;

namespace {

constexpr uint32_t kInfinity = 0x7f800000;

float power_of_two(int e) { return std::bit_cast<float>(static_cast<uint32_t>(e + 127) << 23); }

template <class T>
void widen_block(const T* x, float* out) {
    for (int64_t k = 0; k < kQuantizedBlock; k += kLanes) store(out + k, load(x + k, kLanes), kLanes);
}

// Floats compare as their bits do, and what is no finite number is above all others.
uint32_t largest_bits(const float* x) {
    uint32_t most = 0;
    for (int64_t k = 0; k < kQuantizedBlock; ++k) most = std::max(most, std::bit_cast<uint32_t>(x[k]) & 0x7fffffffu);
    return most;
}

// As exponent_for, of a float by its bits: 127 / 128 of a power of two has the fraction 0x7e0000.
int exponent_of(uint32_t bits, int least) {
    const int e = static_cast<int>(bits >> 23) - 127 - 6 + ((bits & 0x7fffffu) > 0x7e0000u ? 1 : 0);
    return std::clamp(bits == 0 ? least : e, least, 126);
}

template <class T>
void quantize_of(ThreadPool& pool, int64_t blocks, int least, const T* x, int8_t* q) {
    pool.parallel([&](int thread, int threads) {
        const Range mine = split(blocks, threads, thread);
        for (int64_t b = mine.begin; b < mine.end; ++b) {
            alignas(64) float wide[kQuantizedBlock];
            int8_t* const to = q + b * (kQuantizedBlock + 1);
            widen_block(x + b * kQuantizedBlock, wide);
            const uint32_t most = largest_bits(wide);
            const bool finite = most < kInfinity;
            const int e = finite ? exponent_of(most, least) : 0;
            const float scale = finite ? power_of_two(-e) : 0.0f;
            // Adding 1.5 x 2^23 rounds to an integer, which then stands in the low bits.
            for (int64_t k = 0; k < kQuantizedBlock; ++k) {
                const float v = wide[k] * scale + 12582912.0f;
                to[k] = static_cast<int8_t>(std::bit_cast<int32_t>(v) - 0x4b400000);
            }
            if (!finite) std::fill(to, to + kQuantizedBlock, int8_t{0});
            to[kQuantizedBlock] = finite ? static_cast<int8_t>(e) : kNotFinite;
        }
    });
}

template <class T>
void dequantize_of(ThreadPool& pool, int64_t rows, int64_t blocks, const int8_t* q, T* x) {
    constexpr int64_t kBytes = kQuantizedBlock + 1;
    pool.parallel([&](int thread, int threads) {
        const Range mine = split(blocks, threads, thread);
        for (int64_t b = mine.begin; b < mine.end; ++b) {
            alignas(64) float sum[kQuantizedBlock];
            for (int64_t row = 0; row < rows; ++row) {
                const int8_t* const from = q + (row * blocks + b) * kBytes;
                const int8_t e = from[kQuantizedBlock];
                const float scale = e == kNotFinite ? std::numeric_limits<float>::quiet_NaN() : power_of_two(e);
                if (row == 0) {
                    for (int64_t k = 0; k < kQuantizedBlock; ++k) sum[k] = static_cast<float>(from[k]) * scale;
                } else {
                    for (int64_t k = 0; k < kQuantizedBlock; ++k) sum[k] += static_cast<float>(from[k]) * scale;
                }
            }
            T* const to = x + b * kQuantizedBlock;
            for (int64_t k = 0; k < kQuantizedBlock; k += kLanes) store(to + k, load(sum + k, kLanes), kLanes);
        }
    });
}

}  // namespace

constinit const Typed<Quantize> quantize([]<class T>() { return quantize_of<T>; });
constinit const Typed<Dequantize> dequantize([]<class T>() { return dequantize_of<T>; });

}  // namespace lockstep::kernels::cpu::LOCKSTEP_ISA
