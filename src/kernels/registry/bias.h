// Biases, GELU, dropout, the sum with the residual stream.
#pragma once

#include "base/random.h"
#include "kernels/dropout_mask.h"
#include "kernels/registry/registry.h"
#include "ops/dropout.h"

namespace lockstep::kernels::registry {

// What an op drops (ops/dropout.h), but for the layer and the noise, which come with a call.
struct Dropped {
    bool drops = false;
    uint64_t site = 0;
    uint32_t threshold = 0;
    float scale = 1;

    explicit Dropped(const ir::Op& op) : drops(ops::has_dropout(op)) {
        if (!drops) return;
        site = static_cast<uint64_t>(op.integer("rng_key"));
        threshold = dropout_threshold(op.number("dropout"));
        scale = static_cast<float>(1 / (1 - op.number("dropout")));
    }
    uint64_t stream(const KernelArgs& k) const { return dropout_stream(site, static_cast<uint64_t>(k.instance)); }
    DropoutMask mask(const KernelArgs& k, int noise, int64_t first_index) const {
        return {ids(k, noise), stream(k), threshold, static_cast<uint32_t>(first_index), scale};
    }
};

template <class B, class T>
struct Bias {
    static constexpr Family kFamily{"bias", "bias", -1, true};
    using Types = T(T, T);
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([z = rows_over(c, c.in(0), c.in(1))](const KernelArgs& k) {
            B::bias(B::place(k), z.rows, z.n, in<T>(k, 0), in<T>(k, 1), out<T>(k, 0));
        });
    }
};

template <class B, class T>
struct BiasGelu {
    static constexpr Family kFamily{"bias_gelu", "bias_gelu"};
    using Types = T(T, T);
    static bool serves(const KernelContext& c) { return is_gelu(c); }
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([z = rows_over(c, c.in(0), c.in(1))](const KernelArgs& k) {
            B::bias_gelu(B::place(k), z.rows, z.n, in<T>(k, 0), in<T>(k, 1), out<T>(k, 0));
        });
    }
};
template <class B, class T>
struct BiasGeluBackward {  // d_y, x, b -> d_x, d_b
    static constexpr Family kFamily{"bias_gelu_backward", "bias_gelu_backward", 1};
    using Types = std::tuple<T, float>(T, T, T);
    static bool serves(const KernelContext& c) { return is_gelu(c); }
    static int64_t workspace_bytes(const KernelContext& c) {
        const RowsOf z = rows_over(c, c.in(1), c.in(2));
        return B::row_sums_workspace_bytes(z.rows, z.n, c.threads);
    }
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([z = rows_over(c, c.in(1), c.in(2)), adds = c.op.accumulates(1)](const KernelArgs& k) {
            B::bias_gelu_backward(B::place(k), z.rows, z.n, in<T>(k, 0), in<T>(k, 1), in<T>(k, 2), out<T>(k, 0), out(k, 1),
                                  adds && !k.fresh, k.workspace);
        });
    }
};

template <class B, class T>
struct Dropout {
    static constexpr Family kFamily{"dropout", "dropout", -1, true};
    using Types = T(T, int32_t);
    static bool serves(const KernelContext& c) { return c.in(0).dims.size() == c.in(1).dims.size() + 1; }
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from(
            [z = rows_of(c, c.in(0)), drop = Dropped(c.op), first = first_of_last_dim(c, c.in(0))](const KernelArgs& k) {
                B::dropout(B::place(k), z.rows, z.n, in<T>(k, 0), drop.mask(k, 1, first), out<T>(k, 0));
            });
    }
};

template <class B, class S, class T, class... Noise>
struct BiasDropoutAdd {  // x, b, residual[, noise]
    static constexpr Family kFamily{"bias_dropout_add", "bias_dropout_add", -1, true};
    using Types = S(S, T, S, Noise...);
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from(
            [z = rows_of(c, c.in(0)), drop = Dropped(c.op), first = first_of_last_dim(c, c.in(0))](const KernelArgs& k) {
                const DropoutMask mask = drop.drops ? drop.mask(k, 3, first) : DropoutMask{};
                B::bias_dropout_add(B::place(k), z.rows, z.n, in<S>(k, 0), in<T>(k, 1), in<S>(k, 2), mask, out<S>(k, 0));
            });
    }
};

template <class B, class T>
struct SumRows {  // over the first dims: the gradient of a bias
    static constexpr Family kFamily{"einsum", "sum_rows", 0};
    using Types = float(T);
    static bool serves(const KernelContext& c) { return sums_rows(c) && c.elements(c.out(0)) <= B::kMostColumns; }
    static int64_t workspace_bytes(const KernelContext& c) {
        const RowsOf z = rows_over(c, c.in(0), c.out(0));
        return B::sum_rows_workspace_bytes(z.rows, z.n);
    }
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([z = rows_over(c, c.in(0), c.out(0)), adds = c.op.accumulates(0)](const KernelArgs& k) {
            B::sum_rows(B::place(k), z.rows, z.n, in<T>(k, 0), out(k, 0), adds && !k.fresh, k.workspace);
        });
    }
};

}  // namespace lockstep::kernels::registry
