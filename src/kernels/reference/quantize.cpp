#include "base/quantized.h"

#include "kernels/reference/reference.h"

namespace lockstep::kernels::reference {

template <class T>
Made make_quantize(const KernelContext& c) {
    const bool quantizes = c.op.kind == "quantize";
    const int64_t n = c.elements(quantizes ? c.in(0) : c.out(0));
    if (!quantizes) {
        const int64_t rows = c.elements(c.in(0)) / quantized_bytes(n);  // of dequantize: one
        return kernel_from([=](const KernelArgs& a) {
            T* x = static_cast<T*>(a.out[0]);
            for (int64_t i = 0; i < n; ++i) {
                double sum = 0;
                for (int64_t row = 0; row < rows; ++row) {
                    const int8_t* q =
                        in<int8_t>(a, 0) + row * quantized_bytes(n) + quantized_bytes(i / kQuantizedBlock * kQuantizedBlock);
                    const int8_t e = q[kQuantizedBlock];
                    sum += e == kNotFinite ? std::nan("") : std::ldexp(static_cast<double>(q[i % kQuantizedBlock]), e);
                }
                x[i] = static_cast<T>(sum);
            }
        });
    }
    const int least = static_cast<int>(c.op.integer("least"));
    return kernel_from([=](const KernelArgs& a) {
        const T* x = in<T>(a, 0);
        int8_t* q = static_cast<int8_t*>(a.out[0]);
        for (int64_t i = 0; i < n; i += kQuantizedBlock, q += kQuantizedBlock + 1) {
            double most = 0;
            bool finite = true;
            for (int64_t k = 0; k < kQuantizedBlock; ++k) {
                const double v = std::abs(static_cast<double>(x[i + k]));
                finite = finite && std::isfinite(v);
                most = std::max(most, v);
            }
            const int e = finite ? exponent_for(most, least) : kNotFinite;
            for (int64_t k = 0; k < kQuantizedBlock; ++k)
                q[k] = finite ? static_cast<int8_t>(std::nearbyint(std::ldexp(static_cast<double>(x[i + k]), -e))) : int8_t{0};
            q[kQuantizedBlock] = static_cast<int8_t>(e);
        }
    });
}

template Made make_quantize<float>(const KernelContext&);
template Made make_quantize<double>(const KernelContext&);

}  // namespace lockstep::kernels::reference
