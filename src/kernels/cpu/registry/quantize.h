// Blocks of int8 and int4.
#pragma once

#include <vector>

#include "base/quantized.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/quantize.h"
#include "kernels/registry/registry.h"

namespace lockstep::kernels::registry {

template <class T>
struct Quantize {
    static constexpr Family kFamily{"quantize", "quantize"};
    using Types = int8_t(T);
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        cpu::Quantization how{c.op.integer("bits"), static_cast<int>(c.op.integer("least"))};
        how.at_random = c.op.in.size() == 2;
        if (!is_quantized(how.bits))
            return kernel_from([n = c.elements(c.in(0))](const KernelArgs& k) {
                const T* const x = in<T>(k, 0);
                cpu::add(k.queue.pool(), n, &x, 1, out<T>(k, 0));
            });
        const int64_t stream = how.at_random ? c.op.integer("stream") : 0;
        return kernel_from([elements = c.elements(c.in(0)), how, stream](const KernelArgs& k) {
            cpu::Quantization now = how;
            if (how.at_random) now.key = rounding_key(stream, *in<double>(k, 1));
            cpu::quantize(k.queue.pool(), elements, now, in<T>(k, 0), out<int8_t>(k, 0));
        });
    }
};
template <class T>
struct QuantizeAtRandom : Quantize<T> {
    using Types = int8_t(T, double);  // the number of steps
};
template <class T>
struct Dequantize {
    static constexpr Family kFamily{"dequantize", "dequantize"};
    using Types = T(int8_t);
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        const int64_t n = c.elements(c.out(0)), bits = c.op.integer("bits");
        const int64_t rows = c.elements(c.in(0)) / quantized_bytes(n, bits);
        if (!is_quantized(bits))
            return kernel_from([=](const KernelArgs& k) {
                std::vector<const T*> parts;
                for (int64_t row = 0; row < rows; ++row) parts.push_back(in<T>(k, 0) + row * n);
                cpu::add(k.queue.pool(), n, parts.data(), static_cast<int>(rows), out<T>(k, 0));
            });
        return kernel_from(
            [=](const KernelArgs& k) { cpu::dequantize(k.queue.pool(), rows, n, bits, in<int8_t>(k, 0), out<T>(k, 0)); });
    }
};
template <class T>
struct DequantizeSum : Dequantize<T> {
    static constexpr Family kFamily{"dequantize_sum", "dequantize_sum"};
};

}  // namespace lockstep::kernels::registry
