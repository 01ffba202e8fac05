#include "kernels/gpu/quantize.h"

#include "base/quantized.h"
#include "kernels/gpu/each.h"

namespace lockstep::kernels::gpu {
namespace {

// exponent_for of base/quantized.h, of a float: the same for the same number.
__device__ __forceinline__ int exponent_of(float most, int least, int bits) {
    if (most == 0) return least;
    int k = 0;
    const float m = frexpf(most, &k);  // most = m 2^k, 0.5 <= m < 1
    const int b = bits - 1, e = m <= 1 - ldexpf(1.0f, -b) ? k - b : k - b + 1;
    return e < least ? least : e > 126 ? 126 : e;
}

// 32 lanes have a block. Neighbours among them have neighbours among its elements: a block has an odd number of bytes.
template <int bits, class T>
__global__ void __launch_bounds__(kEachThreads) quantize_kernel(int64_t count, Quantization how, const T* x, int8_t* q) {
    constexpr int kElements = static_cast<int>(quantized_block(bits)), kOfLane = kElements / kLanes;
    constexpr int64_t kBytes = quantized_bytes(kElements, bits);
    const int lane = static_cast<int>(thread() % kLanes);
    const int64_t groups = static_cast<int64_t>(blocks()) * (kEachThreads / kLanes);
    const uint32_t key = how.steps ? rounding_key(how.stream, *how.steps) : 0;
    for (int64_t b = static_cast<int64_t>(block()) * (kEachThreads / kLanes) + thread() / kLanes; b < count; b += groups) {
        const int64_t first = b * kElements + lane;
        float values[kOfLane], most = 0;
        bool finite = true;
        UNROLL
        for (int j = 0; j < kOfLane; ++j) {
            values[j] = widen(x[first + j * kLanes]);
            finite = finite && fabsf(values[j]) < INFINITY;  // of NaN, too, this is false
            most = fmaxf(most, fabsf(values[j]));
        }
        const auto larger = [](float a, float c) { return fmaxf(a, c); };
        most = reduce_over<kLanes>(most, static_cast<float*>(nullptr), larger);
        finite = reduce_over<kLanes>(finite ? 0.0f : 1.0f, static_cast<float*>(nullptr), larger) == 0;
        const int e = finite ? exponent_of(most, how.least, bits) : kNotFinite;
        int8_t* const out = q + b * kBytes;
        UNROLL
        for (int j = 0; j < kOfLane; ++j) {
            const float v = finite ? ldexpf(values[j], -e) : 0.0f;
            float rounded = rintf(v);
            if (how.steps) {
                uint32_t value;
                memcpy(&value, &values[j], sizeof value);
                const float size = fabsf(v), below = floorf(size);
                const auto drawn = static_cast<float>(rounding_bits(key, static_cast<uint32_t>(first + j * kLanes), value) >> 8);
                rounded = copysignf(below + (drawn * 0x1p-24f < size - below ? 1.0f : 0.0f), v);
            }
            const int integer = static_cast<int>(rounded);
            if constexpr (bits == 8) {
                out[lane + j * kLanes] = static_cast<int8_t>(integer);
            } else {
                const int high = static_cast<int>(shuffle_xor(static_cast<float>(integer), kLanes / 2));
                if (lane < kLanes / 2) out[lane] = static_cast<int8_t>((integer & 15) | (high & 15) << 4);
            }
        }
        if (lane == 0) out[kBytes - 1] = static_cast<int8_t>(e);
    }
}

template <int bits, class T>
struct DequantizeOf {
    static constexpr int64_t kElements = quantized_block(bits), kBytes = quantized_bytes(kElements, bits);
    int64_t rows, row_bytes;
    const int8_t* q;
    T* x;
    template <int W>
    __device__ void at(int64_t i) const {
        const int64_t in_block = i % kElements;
        Floats<W> sum = {};
        for (int64_t row = 0; row < rows; ++row) {
            const int8_t* const own = q + row * row_bytes + i / kElements * kBytes;
            const int8_t e = own[kBytes - 1];
            UNROLL
            for (int j = 0; j < W; ++j) {
                int value;
                if constexpr (bits == 8) {
                    value = own[in_block + j];
                } else {
                    constexpr int64_t kHalf = kElements / 2;
                    const int nibble = static_cast<uint8_t>(own[(in_block + j) % kHalf]) >> (in_block + j < kHalf ? 0 : 4) & 15;
                    value = nibble < 8 ? nibble : nibble - 16;
                }
                sum[j] += e == kNotFinite ? NAN : ldexpf(static_cast<float>(value), e);
            }
        }
        store(x + i, sum);
    }
};

template <int bits, class T>
void start_quantize(Stream stream, int64_t elements, const Quantization& how, const T* x, int8_t* q) {
    const int64_t count = elements / quantized_block(bits);
    if (count > 0) launch(quantize_kernel<bits, T>, grid_of_pieces(count * kLanes), stream, count, how, x, q);
}
template <int bits, class T>
void start_dequantize(Stream stream, int64_t rows, int64_t elements, const int8_t* q, T* x) {
    for_each(stream, elements, is_wide(0, x), DequantizeOf<bits, T>{rows, quantized_bytes(elements, bits), q, x});
}

}  // namespace

template <class T>
void quantize(Stream stream, int64_t elements, const Quantization& how, const T* x, int8_t* q) {
    if (how.bits == 8) start_quantize<8>(stream, elements, how, x, q);
    else start_quantize<4>(stream, elements, how, x, q);
}
template <class T>
void dequantize(Stream stream, int64_t rows, int64_t elements, int bits, const int8_t* q, T* x) {
    if (bits == 8) start_dequantize<8>(stream, rows, elements, q, x);
    else start_dequantize<4>(stream, rows, elements, q, x);
}

#define COPY(T)                                                                         \
    template void quantize<T>(Stream, int64_t, const Quantization&, const T*, int8_t*); \
    template void dequantize<T>(Stream, int64_t, int64_t, int, const int8_t*, T*);
LOCKSTEP_OF_ONE_TYPE(COPY)
#undef COPY

}  // namespace lockstep::kernels::gpu
