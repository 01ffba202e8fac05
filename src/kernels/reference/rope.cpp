#include "ops/rope.h"

#include <cmath>

#include "kernels/reference/reference.h"

namespace lockstep::kernels::reference {

template <class T>
Made make_rope(const KernelContext& c) {
    const ir::Tensor& x = c.in(0);
    const int64_t head_dim = c.size(x, static_cast<int>(x.dims.size()) - 1), tokens = c.elements(c.in(1)), half = head_dim / 2;
    const int64_t heads = c.elements(x) / tokens / head_dim;
    const double sign = static_cast<double>(c.op.integer("sign"));
    return kernel_from([=, frequencies = ops::rope_frequencies(c.op, head_dim)](const KernelArgs& a) {
        T* out = static_cast<T*>(a.out[0]);
        for (int64_t t = 0; t < tokens; ++t) {
            for (int64_t i = 0; i < half; ++i) {
                const double angle = in<int32_t>(a, 1)[t] * frequencies[i], cosine = std::cos(angle),
                             sine = sign * std::sin(angle);
                for (int64_t h = 0; h < heads; ++h) {
                    const int64_t at = (t * heads + h) * head_dim + i;
                    const double u = in<T>(a, 0)[at], v = in<T>(a, 0)[at + half];
                    out[at] = static_cast<T>(u * cosine - v * sine);
                    out[at + half] = static_cast<T>(v * cosine + u * sine);
                }
            }
        }
    });
}

template Made make_rope<float>(const KernelContext&);
template Made make_rope<double>(const KernelContext&);

}  // namespace lockstep::kernels::reference
