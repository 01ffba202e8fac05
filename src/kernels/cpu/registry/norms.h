// RMSNorm and LayerNorm, forward and backward, with the sum before or after.
#pragma once

#include "kernels/cpu/norm.h"
#include "kernels/registry.h"

namespace lockstep::kernels::registry {

template <class S, class T, class W>
struct RmsNorm {
    static constexpr Family kFamily{"rmsnorm", "cpu.rmsnorm"};
    using Types = std::tuple<T, float>(S, W);
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([z = rows_of(c, c.in(0)), eps = number(c, "eps")](const KernelArgs& k) {
            cpu::rms_norm(k.queue.pool(), z.rows, z.n, in<S>(k, 0), in<W>(k, 1), eps, out<T>(k, 0), out(k, 1));
        });
    }
};
template <class S, class T, class W>
struct AddRmsNorm {  // x, residual, w -> s, y, rstd
    static constexpr Family kFamily{"add_rmsnorm", "cpu.add_rmsnorm", -1, true};
    using Types = std::tuple<S, T, float>(S, S, W);
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([z = rows_of(c, c.in(0)), eps = number(c, "eps")](const KernelArgs& k) {
            cpu::add_rms_norm(k.queue.pool(), z.rows, z.n, in<S>(k, 0), in<S>(k, 1), in<W>(k, 2), eps, out<S>(k, 0), out<T>(k, 1),
                              out(k, 2));
        });
    }
};

// d_y, x, w, rstd -> d_x, d_w; after `also` operands, one that is added to d_x.
template <class S, class W, int also>
struct RmsNormBackwards {
    static int64_t workspace_bytes(const KernelContext& c) {
        return cpu::rms_norm_backward_workspace_bytes(rows_of(c, c.in(1)).n, c.threads);
    }
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([z = rows_of(c, c.in(1)), adds = c.op.accumulates(1)](const KernelArgs& k) {
            cpu::rms_norm_backward(k.queue.pool(), z.rows, z.n, in<S>(k, also), in<S>(k, also + 1), in<W>(k, also + 2),
                                   in(k, also + 3), also == 1 ? in<S>(k, 0) : nullptr, out<S>(k, 0), out(k, 1), adds && !k.fresh,
                                   k.workspace);
        });
    }
};
template <class S, class W>
struct RmsNormBackward : RmsNormBackwards<S, W, 0> {
    static constexpr Family kFamily{"rmsnorm_backward", "cpu.rmsnorm_backward", 1};
    using Types = std::tuple<S, float>(S, S, W, float);
};
template <class S, class W>
struct RmsNormBackwardAdd : RmsNormBackwards<S, W, 1> {
    static constexpr Family kFamily{"rmsnorm_backward_add", "cpu.rmsnorm_backward", 1, true};
    using Types = std::tuple<S, float>(S, S, S, W, float);
};

template <class S, class T, class W>
struct LayerNorm {
    static constexpr Family kFamily{"layernorm", "cpu.layernorm"};
    using Types = std::tuple<T, float, float>(S, W, W);
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([z = rows_of(c, c.in(0)), eps = number(c, "eps")](const KernelArgs& k) {
            cpu::layer_norm(k.queue.pool(), z.rows, z.n, in<S>(k, 0), in<W>(k, 1), in<W>(k, 2), eps, out<T>(k, 0), out(k, 1),
                            out(k, 2));
        });
    }
};
// d_y, x, w, b, mean, rstd -> d_x, d_w, d_b; `also` as above.
template <class S, class W, int also>
struct LayerNormBackwards {
    static int64_t workspace_bytes(const KernelContext& c) {
        return cpu::layer_norm_backward_workspace_bytes(rows_of(c, c.in(1)).n, c.threads);
    }
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([z = rows_of(c, c.in(1)), adds = c.op.accumulates(1)](const KernelArgs& k) {
            cpu::layer_norm_backward(k.queue.pool(), z.rows, z.n, in<S>(k, also), in<S>(k, also + 1), in<W>(k, also + 2),
                                     in(k, also + 4), in(k, also + 5), also == 1 ? in<S>(k, 0) : nullptr, out<S>(k, 0), out(k, 1),
                                     adds && !k.fresh, out(k, 2), k.workspace);
        });
    }
};
template <class S, class W>
struct LayerNormBackward : LayerNormBackwards<S, W, 0> {
    static constexpr Family kFamily{"layernorm_backward", "cpu.layernorm_backward", 1};
    using Types = std::tuple<S, float, float>(S, S, W, W, float, float);
};
template <class S, class W>
struct LayerNormBackwardAdd : LayerNormBackwards<S, W, 1> {
    static constexpr Family kFamily{"layernorm_backward_add", "cpu.layernorm_backward", 1, true};
    using Types = std::tuple<S, float, float>(S, S, S, W, W, float, float);
};

}  // namespace lockstep::kernels::registry
