// Blocks of int8.
#pragma once

#include "base/quantized.h"
#include "kernels/cpu/quantize.h"
#include "kernels/cpu/registry/registry.h"

namespace lockstep::kernels::registry {

template <class T>
struct Quantize {
    static constexpr Family kFamily{"quantize", "cpu.quantize"};
    using Types = int8_t(T);
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([blocks = c.elements(c.in(0)) / kQuantizedBlock,
                            least = static_cast<int>(c.op.integer("least"))](const KernelArgs& k) {
            cpu::quantize(k.queue.pool(), blocks, least, in<T>(k, 0), out<int8_t>(k, 0));
        });
    }
};
template <class T>
struct Dequantize {
    static constexpr Family kFamily{"dequantize", "cpu.dequantize"};
    using Types = T(int8_t);
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        const int64_t n = c.elements(c.out(0));
        return kernel_from([blocks = n / kQuantizedBlock, rows = c.elements(c.in(0)) / quantized_bytes(n)](const KernelArgs& k) {
            cpu::dequantize(k.queue.pool(), rows, blocks, in<int8_t>(k, 0), out<T>(k, 0));
        });
    }
};
template <class T>
struct DequantizeSum : Dequantize<T> {
    static constexpr Family kFamily{"dequantize_sum", "cpu.dequantize_sum"};
};

}  // namespace lockstep::kernels::registry
