// Updates of weights and what optimizers remember; T: how these are stored. Each reads the step's control last.
#pragma once

#include "kernels/optimizer_step.h"
#include "kernels/rank_draws.h"
#include "kernels/registry/registry.h"

namespace lockstep::kernels::registry {

// N: of the weights that it writes besides, in a narrower type; T: it does not.
template <class B, class T, class N>
struct Adams {  // w, g, m, v, control -> w, m, v[, narrow]
    static constexpr bool kWritesNarrow = !std::is_same_v<T, N>;
    using Results = std::conditional_t<kWritesNarrow, std::tuple<T, T, T, N>, std::tuple<T, T, T>>;
    using Types = Results(T, float, T, T, double);
    static std::unique_ptr<Kernel> make_with(const KernelContext& c, AdamStep step) {
        step.beta1 = c.op.number("beta1"), step.beta2 = c.op.number("beta2"), step.eps = c.op.number("eps");
        return kernel_from([n = c.elements(c.in(0)), step](const KernelArgs& k) {
            N* narrow = nullptr;
            if constexpr (kWritesNarrow) narrow = out<N>(k, 3);
            B::adamw(B::place(k), n, step, in<double>(k, 4), in(k, 1), in_place<B, T>(k, n), out<T>(k, 1), out<T>(k, 2), narrow);
        });
    }
};
// Moments in bfloat16, weights in float32.
template <class B, class N>
struct AdamsOfNarrowMoments {  // w, g, m, v, steps, control -> w, m, v[, narrow]
    static constexpr bool kWritesNarrow = !std::is_same_v<float, N>;
    using Results = std::conditional_t<kWritesNarrow, std::tuple<float, Bf16, Bf16, N>, std::tuple<float, Bf16, Bf16>>;
    using Types = Results(float, float, Bf16, Bf16, double, double);
    static std::unique_ptr<Kernel> make_with(const KernelContext& c, AdamStep step) {
        step.beta1 = c.op.number("beta1"), step.beta2 = c.op.number("beta2"), step.eps = c.op.number("eps");
        return kernel_from([n = c.elements(c.in(0)), step, draws = rank_draws(c)](const KernelArgs& k) {
            N* narrow = nullptr;
            if constexpr (kWritesNarrow) narrow = out<N>(k, 3);
            const MomentRounding rounding = {&draws, in<double>(k, 4), static_cast<uint64_t>(k.instance)};
            B::adamw_of_narrow_moments(B::place(k), n, step, in<double>(k, 5), rounding, in(k, 1), in_place<B, float>(k, n),
                                       out<Bf16>(k, 1), out<Bf16>(k, 2), narrow);
        });
    }
};

// Of: one of the above.
template <class Of>
struct AdamWBy : Of {
    static constexpr Family kFamily{"adamw", "adamw"};
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        AdamStep step;
        step.weight_decay = c.op.number("weight_decay");
        return Of::make_with(c, step);
    }
};
template <class Of>
struct AdamBy : Of {
    static constexpr Family kFamily{"adam", "adamw"};
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        AdamStep step;
        step.l2 = number(c, "weight_decay");
        return Of::make_with(c, step);
    }
};
template <class B, class T, class N = T>
using AdamW = AdamWBy<Adams<B, T, N>>;
template <class B, class T, class N = T>
using Adam = AdamBy<Adams<B, T, N>>;
template <class B, class N>
using AdamWOfNarrowMoments = AdamWBy<AdamsOfNarrowMoments<B, N>>;
template <class B, class N>
using AdamOfNarrowMoments = AdamBy<AdamsOfNarrowMoments<B, N>>;

inline MomentumStep momentum_step(const ir::Op& op) {
    MomentumStep step;
    step.momentum = static_cast<float>(op.number("momentum")), step.nesterov = op.integer("nesterov") != 0;
    return step;
}

template <class B, class T, bool remembers>
struct Sgds {  // w, g[, buffer], control -> w[, buffer]
    static constexpr Family kFamily{"sgd", "sgd"};
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        MomentumStep step = momentum_step(c.op);
        step.l2 = number(c, "weight_decay");
        return kernel_from([step, n = c.elements(c.in(0))](const KernelArgs& k) {
            B::sgd(B::place(k), n, step, in<double>(k, remembers ? 3 : 2), in(k, 1), in_place<B, T>(k, n),
                   remembers ? out<T>(k, 1) : nullptr);
        });
    }
};
template <class B, class T>
struct Sgd : Sgds<B, T, false> {
    using Types = T(T, float, double);
};
template <class B, class T>
struct SgdWithMomentum : Sgds<B, T, true> {
    using Types = std::tuple<T, T>(T, float, T, double);
};

template <class B, class T>
struct MuonMomentum {  // g, buffer, control -> u, buffer
    static constexpr Family kFamily{"muon_momentum", "muon_momentum"};
    using Types = std::tuple<float, T>(float, T, double);
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([step = momentum_step(c.op), n = c.elements(c.in(0))](const KernelArgs& k) {
            B::muon_momentum(B::place(k), n, step, in<double>(k, 2), in(k, 0), out(k, 0), out<T>(k, 1));
        });
    }
};
template <class B, class T>
struct Muon {  // w, orthogonal update, control -> w
    static constexpr Family kFamily{"muon", "muon"};
    using Types = T(T, float, double);
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([decay = c.op.number("weight_decay"), n = c.elements(c.in(0))](const KernelArgs& k) {
            B::muon(B::place(k), n, decay, in<double>(k, 2), in(k, 1), in_place<B, T>(k, n));
        });
    }
};

template <class B, class T>
struct OuterGradient {  // anchor, w -> g
    static constexpr Family kFamily{"outer_gradient", "outer_gradient"};
    using Types = float(T, T);
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([scale = number(c, "scale"), n = c.elements(c.in(0))](const KernelArgs& k) {
            B::outer_gradient(B::place(k), n, scale, in<T>(k, 0), in<T>(k, 1), out(k, 0));
        });
    }
};
template <class B, class T, bool remembers>
struct OuterSgds {  // w, anchor, g[, buffer] -> w, anchor[, buffer]
    static constexpr Family kFamily{"outer_sgd", "outer_sgd"};
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([step = momentum_step(c.op), lr = number(c, "lr"), alpha = number(c, "alpha"),
                            n = c.elements(c.in(0))](const KernelArgs& k) {
            B::outer_sgd(B::place(k), n, step, lr, alpha, in(k, 2), in_place<B, T>(k, n), out<T>(k, 1),
                         remembers ? out<T>(k, 2) : nullptr);
        });
    }
};
template <class B, class T>
struct OuterSgd : OuterSgds<B, T, false> {
    using Types = std::tuple<T, T>(T, T, float);
};
template <class B, class T>
struct OuterSgdWithMomentum : OuterSgds<B, T, true> {
    using Types = std::tuple<T, T, T>(T, T, float, T);
};

template <class B>
struct SumSquares {
    static constexpr Family kFamily{"sum_squares", "sum_squares", 0};
    using Types = double(float);
    static int64_t workspace_bytes(const KernelContext& c) { return B::sum_of_squares_workspace_bytes(c.elements(c.in(0))); }
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([n = c.elements(c.in(0)), counts = c.counts(), adds = c.op.accumulates(0)](const KernelArgs& k) {
            B::sum_of_squares(B::place(k), n, in(k, 0), counts, adds && !k.fresh, out<double>(k, 0), k.workspace);
        });
    }
};

}  // namespace lockstep::kernels::registry
