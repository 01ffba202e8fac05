// Biases, GELU, dropout, the sum with the residual stream.
#pragma once

#include "kernels/cpu/bias.h"
#include "kernels/dropped.h"
#include "kernels/registry.h"

namespace lockstep::kernels::registry {

template <class T>
struct Bias {
    static constexpr Family kFamily{"bias", "cpu.bias", -1, true};
    using Types = T(T, T);
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([z = rows_over(c, c.in(0), c.in(1))](const KernelArgs& k) {
            cpu::bias(k.queue.pool(), z.rows, z.n, in<T>(k, 0), in<T>(k, 1), out<T>(k, 0));
        });
    }
};

template <class T>
struct BiasGelu {
    static constexpr Family kFamily{"bias_gelu", "cpu.bias_gelu"};
    using Types = T(T, T);
    static bool serves(const KernelContext& c) { return is_gelu(c); }
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([z = rows_over(c, c.in(0), c.in(1))](const KernelArgs& k) {
            cpu::bias_gelu(k.queue.pool(), z.rows, z.n, in<T>(k, 0), in<T>(k, 1), out<T>(k, 0));
        });
    }
};
template <class T>
struct BiasGeluBackward {  // d_y, x, b -> d_x, d_b
    static constexpr Family kFamily{"bias_gelu_backward", "cpu.bias_gelu_backward", 1};
    using Types = std::tuple<T, float>(T, T, T);
    static bool serves(const KernelContext& c) { return is_gelu(c); }
    static int64_t workspace_bytes(const KernelContext& c) {
        return cpu::row_sums_workspace_bytes(c.elements(c.in(2)), c.threads);
    }
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([z = rows_over(c, c.in(1), c.in(2)), adds = c.op.accumulates(1)](const KernelArgs& k) {
            cpu::bias_gelu_backward(k.queue.pool(), z.rows, z.n, in<T>(k, 0), in<T>(k, 1), in<T>(k, 2), out<T>(k, 0), out(k, 1),
                                    adds && !k.fresh, k.workspace);
        });
    }
};

template <class T>
struct Dropout {
    static constexpr Family kFamily{"dropout", "cpu.dropout", -1, true};
    using Types = T(T, int32_t);
    static bool serves(const KernelContext& c) { return c.in(0).dims.size() == c.in(1).dims.size() + 1; }
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from(
            [z = rows_of(c, c.in(0)), drop = Dropped(c.op), first = first_of_last_dim(c, c.in(0))](const KernelArgs& k) {
                cpu::dropout(k.queue.pool(), z.rows, z.n, in<T>(k, 0), drop.mask<cpu::DropoutMask>(k, 1, first), out<T>(k, 0));
            });
    }
};

template <class S, class T, class... Noise>
struct BiasDropoutAdd {  // x, b, residual[, noise]
    static constexpr Family kFamily{"bias_dropout_add", "cpu.bias_dropout_add", -1, true};
    using Types = S(S, T, S, Noise...);
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from(
            [z = rows_of(c, c.in(0)), drop = Dropped(c.op), first = first_of_last_dim(c, c.in(0))](const KernelArgs& k) {
                const cpu::DropoutMask mask = drop.drops ? drop.mask<cpu::DropoutMask>(k, 3, first) : cpu::DropoutMask{};
                cpu::bias_dropout_add(k.queue.pool(), z.rows, z.n, in<S>(k, 0), in<T>(k, 1), in<S>(k, 2), mask, out<S>(k, 0));
            });
    }
};

template <class T>
struct SumRows {  // over the first dims: the gradient of a bias
    static constexpr Family kFamily{"einsum", "cpu.sum_rows", 0};
    using Types = float(T);
    static bool serves(const KernelContext& c) { return sums_rows(c); }
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([z = rows_over(c, c.in(0), c.out(0)), adds = c.op.accumulates(0)](const KernelArgs& k) {
            cpu::sum_rows(k.queue.pool(), z.rows, z.n, in<T>(k, 0), out(k, 0), adds && !k.fresh);
        });
    }
};

}  // namespace lockstep::kernels::registry
