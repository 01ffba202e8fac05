#include <algorithm>
#include <cmath>

#include "kernels/reference/reference.h"

namespace lockstep::kernels::reference {

template <class T>
Made make_loss(const KernelContext& c) {
    const ir::Tensor& x = c.in(0);
    const int last = static_cast<int>(x.dims.size()) - 1;
    const int64_t n = c.size(x, last), rows = c.elements(x) / n;
    if (c.op.kind == "max") {
        return kernel_from([=](const KernelArgs& a) {
            for (int64_t r = 0; r < rows; ++r)
                static_cast<T*>(a.out[0])[r] = *std::max_element(in<T>(a, 0) + r * n, in<T>(a, 0) + (r + 1) * n);
        });
    }
    if (c.op.kind == "exp_shifted") {
        return kernel_from([=](const KernelArgs& a) {
            for (int64_t r = 0; r < rows; ++r) {
                for (int64_t i = 0; i < n; ++i) {
                    static_cast<T*>(a.out[0])[r * n + i] = static_cast<T>(
                        std::exp(static_cast<double>(in<T>(a, 0)[r * n + i]) - static_cast<double>(in<T>(a, 1)[r])));
                }
            }
        });
    }
    const int64_t valid = std::clamp<int64_t>(c.routine.dims[x.dims[last]].valid - c.first_index(x, last), 0, n);
    return kernel_from([=, fill = static_cast<T>(c.op.number("fill"))](const KernelArgs& a) {  // mask_padding
        for (int64_t r = 0; r < rows; ++r) {
            for (int64_t i = 0; i < n; ++i) static_cast<T*>(a.out[0])[r * n + i] = i < valid ? in<T>(a, 0)[r * n + i] : fill;
        }
    });
}

template Made make_loss<float>(const KernelContext&);
template Made make_loss<double>(const KernelContext&);

}  // namespace lockstep::kernels::reference
