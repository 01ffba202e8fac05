// Cross-entropy, and the maximum that it needs.
#pragma once

#include "kernels/registry/registry.h"

namespace lockstep::kernels::registry {

// S: how logits are stored; T: their gradient.
template <class B, class S>
struct Max {
    static constexpr Family kFamily{"max", "max"};
    using Types = float(S);
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from(
            [z = rows_of(c, c.in(0))](const KernelArgs& k) { B::row_max(B::place(k), z.rows, z.n, in<S>(k, 0), out(k, 0)); });
    }
};

template <class B, class S>
struct CrossEntropy {  // logits, m, targets -> z, t
    static constexpr Family kFamily{"cross_entropy", "cross_entropy"};
    using Types = std::tuple<float, float>(S, float, int32_t);
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([z = rows_of(c, c.in(0)), first = first_of_last_dim(c, c.in(0))](const KernelArgs& k) {
            B::cross_entropy(B::place(k), z.rows, z.n, in<S>(k, 0), in(k, 1), ids(k, 2), first, out(k, 0), out(k, 1));
        });
    }
};
template <class B, class S, class T>
struct CrossEntropyBackward {  // d_z, d_t, logits, m, targets -> d_logits
    static constexpr Family kFamily{"cross_entropy_backward", "cross_entropy_backward", -1, true};
    using Types = T(float, float, S, float, int32_t);
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([z = rows_of(c, c.in(2)), first = first_of_last_dim(c, c.in(2))](const KernelArgs& k) {
            B::cross_entropy_backward(B::place(k), z.rows, z.n, in(k, 0), in(k, 1), in<S>(k, 2), in(k, 3), ids(k, 4), first,
                                      out<T>(k, 0));
        });
    }
};

template <class B, class S, class T>
struct CrossEntropyGradient {  // d_nll, d_t, logits, targets -> d_logits, m, z, t
    static constexpr Family kFamily{"cross_entropy_gradient", "cross_entropy_gradient", -1, true};
    using Types = std::tuple<T, float, float, float>(float, float, S, int32_t);
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([z = rows_of(c, c.in(2))](const KernelArgs& k) {
            B::cross_entropy_gradient(B::place(k), z.rows, z.n, in(k, 0), in(k, 1), in<S>(k, 2), ids(k, 3), out(k, 1), out(k, 2),
                                      out(k, 3), out<T>(k, 0));
        });
    }
};

}  // namespace lockstep::kernels::registry
