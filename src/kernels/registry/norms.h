// RMSNorm and LayerNorm, forward and backward, with the sum before or after.
#pragma once

#include "kernels/registry/registry.h"

namespace lockstep::kernels::registry {

template <class B, class S, class T, class W>
struct RmsNorm {
    static constexpr Family kFamily{"rmsnorm", "rmsnorm"};
    using Types = std::tuple<T, float>(S, W);
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([z = rows_of(c, c.in(0)), eps = number(c, "eps")](const KernelArgs& k) {
            B::rms_norm(B::place(k), z.rows, z.n, in<S>(k, 0), in<W>(k, 1), eps, out<T>(k, 0), out(k, 1));
        });
    }
};
template <class B, class S, class T, class W>
struct AddRmsNorm {  // x, residual, w -> s, y, rstd
    static constexpr Family kFamily{"add_rmsnorm", "add_rmsnorm", -1, true};
    using Types = std::tuple<S, T, float>(S, S, W);
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([z = rows_of(c, c.in(0)), eps = number(c, "eps")](const KernelArgs& k) {
            B::add_rms_norm(B::place(k), z.rows, z.n, in<S>(k, 0), in<S>(k, 1), in<W>(k, 2), eps, out<S>(k, 0), out<T>(k, 1),
                            out(k, 2));
        });
    }
};

// d_y, x, w, rstd -> d_x, d_w; after `also` operands, one that is added to d_x.
template <class B, class S, class W, int also>
struct RmsNormBackwards {
    static int64_t workspace_bytes(const KernelContext& c) {
        const RowsOf z = rows_of(c, c.in(1));
        return B::template rms_norm_backward_workspace_bytes<S>(z.rows, z.n, c.threads);
    }
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([z = rows_of(c, c.in(1)), adds = c.op.accumulates(1)](const KernelArgs& k) {
            B::rms_norm_backward(B::place(k), z.rows, z.n, in<S>(k, also), in<S>(k, also + 1), in<W>(k, also + 2),
                                 in(k, also + 3), also == 1 ? in<S>(k, 0) : nullptr, out<S>(k, 0), out(k, 1), adds && !k.fresh,
                                 k.workspace);
        });
    }
};
template <class B, class S, class W>
struct RmsNormBackward : RmsNormBackwards<B, S, W, 0> {
    static constexpr Family kFamily{"rmsnorm_backward", "rmsnorm_backward", 1};
    using Types = std::tuple<S, float>(S, S, W, float);
};
template <class B, class S, class W>
struct RmsNormBackwardAdd : RmsNormBackwards<B, S, W, 1> {
    static constexpr Family kFamily{"rmsnorm_backward_add", "rmsnorm_backward", 1, true};
    using Types = std::tuple<S, float>(S, S, S, W, float);
};

template <class B, class S, class T, class W>
struct LayerNorm {
    static constexpr Family kFamily{"layernorm", "layernorm"};
    using Types = std::tuple<T, float, float>(S, W, W);
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([z = rows_of(c, c.in(0)), eps = number(c, "eps")](const KernelArgs& k) {
            B::layer_norm(B::place(k), z.rows, z.n, in<S>(k, 0), in<W>(k, 1), in<W>(k, 2), eps, out<T>(k, 0), out(k, 1),
                          out(k, 2));
        });
    }
};
// d_y, x, w, b, mean, rstd -> d_x, d_w, d_b; `also` as above.
template <class B, class S, class W, int also>
struct LayerNormBackwards {
    static int64_t workspace_bytes(const KernelContext& c) {
        const RowsOf z = rows_of(c, c.in(1));
        return B::template layer_norm_backward_workspace_bytes<S>(z.rows, z.n, c.threads);
    }
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([z = rows_of(c, c.in(1)), adds = c.op.accumulates(1)](const KernelArgs& k) {
            B::layer_norm_backward(B::place(k), z.rows, z.n, in<S>(k, also), in<S>(k, also + 1), in<W>(k, also + 2),
                                   in(k, also + 4), in(k, also + 5), also == 1 ? in<S>(k, 0) : nullptr, out<S>(k, 0), out(k, 1),
                                   adds && !k.fresh, out(k, 2), k.workspace);
        });
    }
};
template <class B, class S, class W>
struct LayerNormBackward : LayerNormBackwards<B, S, W, 0> {
    static constexpr Family kFamily{"layernorm_backward", "layernorm_backward", 1};
    using Types = std::tuple<S, float, float>(S, S, W, W, float, float);
};
template <class B, class S, class W>
struct LayerNormBackwardAdd : LayerNormBackwards<B, S, W, 1> {
    static constexpr Family kFamily{"layernorm_backward_add", "layernorm_backward", 1, true};
    using Types = std::tuple<S, float, float>(S, S, S, W, W, float, float);
};

}  // namespace lockstep::kernels::registry
