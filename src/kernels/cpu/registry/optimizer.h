// Updates of weights and what optimizers remember; T: how these are stored. Each reads the step's control last.
#pragma once

#include <algorithm>

#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/optimizer.h"
#include "kernels/registry/registry.h"
#include "kernels/step_control.h"

namespace lockstep::kernels::registry {

inline StepControl control(const KernelArgs& k, int operand) { return StepControl::read(in<double>(k, operand)); }

// What is updated in place: the new weights, where they stand elsewhere than the old ones.
template <class T>
T* weights_of(const KernelArgs& k, int64_t n) {
    const T* own = in<T>(k, 0);
    if (own != out<T>(k, 0)) cpu::add(k.queue.pool(), n, &own, 1, out<T>(k, 0));
    return out<T>(k, 0);
}

template <class T>
struct Adams {  // w, g, m, v, control -> w, m, v
    using Types = std::tuple<T, T, T>(T, float, T, T, double);
    static std::unique_ptr<Kernel> make_with(const KernelContext& c, cpu::AdamWStep step) {
        step.beta1 = c.op.number("beta1"), step.beta2 = c.op.number("beta2"), step.eps = c.op.number("eps");
        return kernel_from([n = c.elements(c.in(0)), step](const KernelArgs& k) {
            const StepControl s = control(k, 4);
            cpu::AdamWStep now = step;
            now.lr = s.lr, now.bias_correction1 = s.bias_correction1, now.bias_correction2 = s.bias_correction2;
            now.grad_scale = static_cast<float>(s.clip), now.commit = s.commit ? 1 : 0;
            cpu::adamw(k.queue.pool(), n, now, in(k, 1), weights_of<T>(k, n), out<T>(k, 1), out<T>(k, 2));
        });
    }
};
template <class T>
struct AdamW : Adams<T> {
    static constexpr Family kFamily{"adamw", "adamw"};
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        cpu::AdamWStep step;
        step.weight_decay = c.op.number("weight_decay");
        return Adams<T>::make_with(c, step);
    }
};
template <class T>
struct Adam : Adams<T> {
    static constexpr Family kFamily{"adam", "adamw"};
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        cpu::AdamWStep step;
        step.l2 = number(c, "weight_decay");
        return Adams<T>::make_with(c, step);
    }
};

inline cpu::MomentumStep momentum_step(const ir::Op& op) {
    cpu::MomentumStep step;
    step.momentum = static_cast<float>(op.number("momentum")), step.nesterov = op.integer("nesterov") != 0;
    return step;
}

template <class T, bool remembers>
struct Sgds {  // w, g[, buffer], control -> w[, buffer]
    static constexpr Family kFamily{"sgd", "sgd"};
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        cpu::MomentumStep fixed = momentum_step(c.op);
        fixed.l2 = number(c, "weight_decay");
        return kernel_from([fixed, n = c.elements(c.in(0))](const KernelArgs& k) {
            const StepControl s = control(k, remembers ? 3 : 2);
            T* const w = weights_of<T>(k, n);
            if (!s.commit) return;
            cpu::MomentumStep step = fixed;
            step.lr = static_cast<float>(s.lr), step.grad_scale = static_cast<float>(s.clip);
            cpu::sgd(k.queue.pool(), n, step, in(k, 1), w, remembers ? out<T>(k, 1) : nullptr);
        });
    }
};
template <class T>
struct Sgd : Sgds<T, false> {
    using Types = T(T, float, double);
};
template <class T>
struct SgdWithMomentum : Sgds<T, true> {
    using Types = std::tuple<T, T>(T, float, T, double);
};

template <class T>
struct MuonMomentum {  // g, buffer, control -> u, buffer
    static constexpr Family kFamily{"muon_momentum", "muon_momentum"};
    using Types = std::tuple<float, T>(float, T, double);
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([fixed = momentum_step(c.op), n = c.elements(c.in(0))](const KernelArgs& k) {
            const StepControl s = control(k, 2);
            if (!s.commit) return std::fill_n(out(k, 0), n, 0.0f), void();
            cpu::MomentumStep step = fixed;
            step.grad_scale = static_cast<float>(s.clip);
            cpu::muon_momentum(k.queue.pool(), n, step, in(k, 0), out(k, 0), out<T>(k, 1));
        });
    }
};
template <class T>
struct Muon {  // w, orthogonal update, control -> w
    static constexpr Family kFamily{"muon", "muon"};
    using Types = T(T, float, double);
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([decay = c.op.number("weight_decay"), n = c.elements(c.in(0))](const KernelArgs& k) {
            const StepControl s = control(k, 2);
            T* const w = weights_of<T>(k, n);
            if (s.commit)
                cpu::muon(k.queue.pool(), n, static_cast<float>(1 - s.lr * decay), static_cast<float>(s.lr), in(k, 1), w);
        });
    }
};

template <class T>
struct OuterGradient {  // anchor, w -> g
    static constexpr Family kFamily{"outer_gradient", "outer_gradient"};
    using Types = float(T, T);
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([scale = number(c, "scale"), n = c.elements(c.in(0))](const KernelArgs& k) {
            cpu::outer_gradient(k.queue.pool(), n, scale, in<T>(k, 0), in<T>(k, 1), out(k, 0));
        });
    }
};
template <class T, bool remembers>
struct OuterSgds {  // w, anchor, g[, buffer] -> w, anchor[, buffer]
    static constexpr Family kFamily{"outer_sgd", "outer_sgd"};
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        cpu::MomentumStep step = momentum_step(c.op);
        step.lr = number(c, "lr");
        return kernel_from([step, alpha = number(c, "alpha"), n = c.elements(c.in(0))](const KernelArgs& k) {
            cpu::outer_sgd(k.queue.pool(), n, step, alpha, in(k, 2), weights_of<T>(k, n), out<T>(k, 1),
                           remembers ? out<T>(k, 2) : nullptr);
        });
    }
};
template <class T>
struct OuterSgd : OuterSgds<T, false> {
    using Types = std::tuple<T, T>(T, T, float);
};
template <class T>
struct OuterSgdWithMomentum : OuterSgds<T, true> {
    using Types = std::tuple<T, T, T>(T, T, float, T);
};

struct SumSquares {
    static constexpr Family kFamily{"sum_squares", "sum_squares", 0};
    using Types = double(float);
    static int64_t workspace_bytes(const KernelContext& c) { return cpu::sum_of_squares_workspace_bytes(c.elements(c.in(0))); }
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([n = c.elements(c.in(0)), counts = c.counts(), adds = c.op.accumulates(0)](const KernelArgs& k) {
            const double sum = counts ? cpu::sum_of_squares(k.queue.pool(), n, in(k, 0), k.workspace).sum : 0;
            double& total = *static_cast<double*>(k.out[0]);
            total = adds && !k.fresh ? total + sum : sum;
        });
    }
};

}  // namespace lockstep::kernels::registry
