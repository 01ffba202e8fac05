#include "base/quantized.h"

#include <algorithm>
#include <bit>

#include "kernels/reference/reference.h"

namespace lockstep::kernels::reference {

namespace {

// Element k of a block, without its scale.
int element(const int8_t* q, int64_t k, int64_t bits) {
    if (bits == 8) return q[k];
    const int64_t half = quantized_block(bits) / 2;
    const int value = (static_cast<uint8_t>(q[k % half]) >> (k < half ? 0 : 4)) & 15;
    return value < 8 ? value : value - 16;
}

template <class T>
Made make_dequantize(const KernelContext& c) {
    const int64_t n = c.elements(c.out(0)), bits = c.op.integer("bits"), block = quantized_block(bits);
    const int64_t rows = c.elements(c.in(0)) / quantized_bytes(n, bits);  // of dequantize: one
    if (!is_quantized(bits))
        return kernel_from([=](const KernelArgs& a) {
            for (int64_t i = 0; i < n; ++i) {
                double sum = 0;
                for (int64_t row = 0; row < rows; ++row) sum += static_cast<double>(in<T>(a, 0)[row * n + i]);
                static_cast<T*>(a.out[0])[i] = static_cast<T>(sum);
            }
        });
    return kernel_from([=](const KernelArgs& a) {
        T* x = static_cast<T*>(a.out[0]);
        for (int64_t i = 0; i < n; ++i) {
            double sum = 0;
            for (int64_t row = 0; row < rows; ++row) {
                const int8_t* q = in<int8_t>(a, 0) + row * quantized_bytes(n, bits) + quantized_bytes(i / block * block, bits);
                const int8_t e = q[quantized_bytes(block, bits) - 1];
                sum += e == kNotFinite ? std::nan("") : std::ldexp(static_cast<double>(element(q, i % block, bits)), e);
            }
            x[i] = static_cast<T>(sum);
        }
    });
}

}  // namespace

template <class T>
Made make_quantize(const KernelContext& c) {
    if (c.op.kind != "quantize") return make_dequantize<T>(c);
    const int64_t n = c.elements(c.in(0)), bits = c.op.integer("bits"), block = quantized_block(bits);
    if (!is_quantized(bits))
        return kernel_from([n](const KernelArgs& a) { std::copy_n(in<T>(a, 0), n, static_cast<T*>(a.out[0])); });
    const int least = static_cast<int>(c.op.integer("least"));
    const bool at_random = c.op.in.size() == 2;
    const int64_t stream = at_random ? c.op.integer("stream") : 0;
    return kernel_from([=](const KernelArgs& a) {
        const T* x = in<T>(a, 0);
        const uint32_t key = at_random ? rounding_key(stream, *in<double>(a, 1)) : 0;
        int8_t* q = static_cast<int8_t*>(a.out[0]);
        std::fill(q, q + quantized_bytes(n, bits), int8_t{0});
        for (int64_t i = 0; i < n; i += block, q += quantized_bytes(block, bits)) {
            double most = 0;
            bool finite = true;
            for (int64_t k = 0; k < block; ++k) {
                const double v = std::abs(static_cast<double>(x[i + k]));
                finite = finite && std::isfinite(v);
                most = std::max(most, v);
            }
            const int e = finite ? exponent_for(most, least, bits) : kNotFinite;
            q[quantized_bytes(block, bits) - 1] = static_cast<int8_t>(e);
            for (int64_t k = 0; finite && k < block; ++k) {
                const double v = std::ldexp(static_cast<double>(x[i + k]), -e);
                const auto value = std::bit_cast<uint32_t>(static_cast<float>(x[i + k]));
                const double rounded =
                    at_random ? rounded_at_random(v, rounding_bits(key, static_cast<uint32_t>(i + k), value)) : std::nearbyint(v);
                const int integer = static_cast<int>(rounded), half = static_cast<int>(block / 2);
                if (bits == 8) q[k] = static_cast<int8_t>(integer);
                else q[k % half] = static_cast<int8_t>(q[k % half] | (integer & 15) << (k < half ? 0 : 4));
            }
        }
    });
}

template Made make_quantize<float>(const KernelContext&);
template Made make_quantize<double>(const KernelContext&);

}  // namespace lockstep::kernels::reference
