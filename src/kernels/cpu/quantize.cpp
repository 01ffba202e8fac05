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

// Hardware fetches ahead within a page, and a few blocks are a page: these bytes of a later block are asked for here.
constexpr int64_t kBytesAhead = 8192;
template <int64_t bytes>
void fetch_ahead(const void* of) {
    constexpr int64_t kLine = 64;
    for (int64_t at = 0; at < bytes; at += kLine) __builtin_prefetch(static_cast<const char*>(of) + kBytesAhead + at);
}

template <int64_t block, class T>
void widen_block(const T* x, float* out) {
    for (int64_t k = 0; k < block; k += kLanes) store(out + k, load(x + k, kLanes), kLanes);
}

// Floats compare as their bits do, and what is no finite number is above all others.
template <int64_t block>
uint32_t largest_bits(const float* x) {
    uint32_t most = 0;
    for (int64_t k = 0; k < block; ++k) most = std::max(most, std::bit_cast<uint32_t>(x[k]) & 0x7fffffffu);
    return most;
}

// As exponent_for, of a float by its bits: the largest q over a power of two is a fraction of ones, then zeros.
template <int64_t bits>
int exponent_of(uint32_t most, int least) {
    constexpr uint32_t kLargest = 0x800000u - (0x800000u >> (bits - 2));
    const int e = static_cast<int>(most >> 23) - 127 - (static_cast<int>(bits) - 2) + ((most & 0x7fffffu) > kLargest ? 1 : 0);
    return std::clamp(most == 0 ? least : e, least, 126);
}

// Adding 1.5 x 2^23 rounds to an integer, which is then in the low bits.
int8_t nearest(float v) { return static_cast<int8_t>(std::bit_cast<int32_t>(v + 12582912.0f) - 0x4b400000); }

template <class T, int64_t bits, bool at_random>
void quantize_as(ThreadPool& pool, int64_t elements, const Quantization& how, const T* x, int8_t* q) {
    constexpr int64_t kBlock = quantized_block(bits), kBytes = quantized_bytes(kBlock, bits);
    pool.parallel([&](int thread, int threads) {
        const Range mine = split(elements / kBlock, threads, thread);
        const uint32_t key = how.key;
        for (int64_t b = mine.begin; b < mine.end; ++b) {
            alignas(64) float wide[kBlock];
            alignas(64) int8_t rounded[kBlock];
            int8_t* const to = q + b * kBytes;
            fetch_ahead<kBlock * sizeof(T)>(x + b * kBlock);
            widen_block<kBlock>(x + b * kBlock, wide);
            const uint32_t most = largest_bits<kBlock>(wide);
            if (most >= kInfinity) {
                std::fill(to, to + kBytes - 1, int8_t{0});
                to[kBytes - 1] = kNotFinite;
                continue;
            }
            const int e = exponent_of<bits>(most, how.least);
            const float scale = power_of_two(-e);
            if constexpr (at_random) {
                const auto first = static_cast<uint32_t>(b * kBlock);
                for (int64_t k = 0; k < kBlock; ++k) {
                    const uint32_t value = std::bit_cast<uint32_t>(wide[k]);
                    const uint32_t chance = rounding_bits(key, first + static_cast<uint32_t>(k), value) >> 8;
                    // v is below 2^24: what is cut off is its fraction.
                    const float v = std::abs(wide[k] * scale);
                    const auto below = static_cast<int32_t>(v);
                    const float fraction = v - static_cast<float>(below);
                    const int32_t size = below + (static_cast<float>(static_cast<int32_t>(chance)) * 0x1p-24f < fraction ? 1 : 0);
                    rounded[k] = static_cast<int8_t>(static_cast<int32_t>(value) < 0 ? -size : size);
                }
            } else {
                for (int64_t k = 0; k < kBlock; ++k) rounded[k] = nearest(wide[k] * scale);
            }
            if constexpr (bits == 8) {
                std::copy(rounded, rounded + kBlock, to);
            } else {
                for (int64_t k = 0; k < kBlock / 2; ++k)
                    to[k] = static_cast<int8_t>((rounded[k] & 15) | (rounded[k + kBlock / 2] << 4));
            }
            to[kBytes - 1] = static_cast<int8_t>(e);
        }
    });
}

template <class T>
void quantize_of(ThreadPool& pool, int64_t elements, const Quantization& how, const T* x, int8_t* q) {
    const auto as = how.bits == 8 ? (how.at_random ? quantize_as<T, 8, true> : quantize_as<T, 8, false>)
                                  : (how.at_random ? quantize_as<T, 4, true> : quantize_as<T, 4, false>);
    as(pool, elements, how, x, q);
}

// sum = the block's elements, or sum += them.
template <int64_t bits, bool adds>
void add_block(const int8_t* q, float* sum) {
    constexpr int64_t kBlock = quantized_block(bits);
    fetch_ahead<quantized_bytes(kBlock, bits)>(q);
    const int8_t e = q[quantized_bytes(kBlock, bits) - 1];
    const float scale = e == kNotFinite ? std::numeric_limits<float>::quiet_NaN() : power_of_two(e);
    const auto add = [scale](float& to, int value) {
        const float x = static_cast<float>(value) * scale;
        to = adds ? to + x : x;
    };
    if constexpr (bits == 8) {
        for (int64_t k = 0; k < kBlock; ++k) add(sum[k], q[k]);
    } else {
        for (int64_t k = 0; k < kBlock / 2; ++k) add(sum[k], static_cast<int8_t>(q[k] << 4) >> 4);
        for (int64_t k = 0; k < kBlock / 2; ++k) add(sum[k + kBlock / 2], q[k] >> 4);
    }
}

template <class T, int64_t bits>
void dequantize_as(ThreadPool& pool, int64_t rows, int64_t elements, const int8_t* q, T* x) {
    constexpr int64_t kBlock = quantized_block(bits), kBytes = quantized_bytes(kBlock, bits);
    const int64_t row_bytes = quantized_bytes(elements, bits);
    pool.parallel([&](int thread, int threads) {
        const Range mine = split(elements / kBlock, threads, thread);
        for (int64_t b = mine.begin; b < mine.end; ++b) {
            alignas(64) float sum[kBlock];
            add_block<bits, false>(q + b * kBytes, sum);
            for (int64_t row = 1; row < rows; ++row) add_block<bits, true>(q + row * row_bytes + b * kBytes, sum);
            T* const to = x + b * kBlock;
            for (int64_t k = 0; k < kBlock; k += kLanes) store(to + k, load(sum + k, kLanes), kLanes);
        }
    });
}

template <class T>
void dequantize_of(ThreadPool& pool, int64_t rows, int64_t elements, int64_t bits, const int8_t* q, T* x) {
    (bits == 8 ? dequantize_as<T, 8> : dequantize_as<T, 4>)(pool, rows, elements, q, x);
}

}  // namespace

constinit const Typed<Quantize> quantize([]<class T>() { return quantize_of<T>; });
constinit const Typed<Dequantize> dequantize([]<class T>() { return dequantize_of<T>; });

}  // namespace lockstep::kernels::cpu::LOCKSTEP_ISA
