#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "kernels/reference/reference.h"
#include "kernels/step_control.h"

namespace lockstep::kernels::reference {

template <class T>
Made make_optimizer(const KernelContext& c) {
    if (c.op.kind == "inverse_count") {
        return kernel_from(
            [](const KernelArgs& a) { *static_cast<T*>(a.out[0]) = static_cast<T>(1 / std::max(1.0, *in<double>(a, 0))); });
    }
    if (c.op.kind == "zero_padding") {
        return kernel_from([ranges = std::get<std::vector<int64_t>>(c.op.attrs.at("ranges"))](const KernelArgs& a) {
            for (size_t i = 0; i + 1 < ranges.size(); i += 2)
                std::fill(static_cast<T*>(a.out[0]) + ranges[i], static_cast<T*>(a.out[0]) + ranges[i + 1], T(0));
        });
    }
    ensure(c.op.kind == "adamw", "reference optimizer: " + c.op.kind);
    const int64_t n = c.elements(c.in(0));
    const double beta1 = c.op.number("beta1"), beta2 = c.op.number("beta2"), eps = c.op.number("eps"),
                 decay = c.op.number("weight_decay");
    return kernel_from([=](const KernelArgs& a) {
        const StepControl s = StepControl::read(in<double>(a, 4));
        const T *w0 = in<T>(a, 0), *g0 = in<T>(a, 1);
        T *w = static_cast<T*>(a.out[0]), *m = static_cast<T*>(a.out[1]), *v = static_cast<T*>(a.out[2]);
        if (!s.commit) {
            if (w != w0) std::memcpy(w, w0, sizeof(T) * n);
            return;
        }
        for (int64_t i = 0; i < n; ++i) {
            const double g = static_cast<double>(g0[i]) * s.clip;
            const double m1 = beta1 * static_cast<double>(m[i]) + (1 - beta1) * g,
                         v1 = beta2 * static_cast<double>(v[i]) + (1 - beta2) * g * g;
            const double decayed = static_cast<double>(w0[i]) * (1 - s.lr * decay);
            w[i] =
                static_cast<T>(decayed - s.lr / s.bias_correction1 * m1 / (std::sqrt(v1) / std::sqrt(s.bias_correction2) + eps));
            m[i] = static_cast<T>(m1);
            v[i] = static_cast<T>(v1);
        }
    });
}

template Made make_optimizer<float>(const KernelContext&);
template Made make_optimizer<double>(const KernelContext&);

}  // namespace lockstep::kernels::reference
