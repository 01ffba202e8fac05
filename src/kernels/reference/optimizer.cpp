#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <vector>

#include "base/error.h"
#include "base/quantized.h"
#include "kernels/rank_draws.h"
#include "kernels/reference/reference.h"
#include "kernels/step_control.h"

namespace lockstep::kernels::reference {

namespace {

template <class T>
void keep(const T* from, T* to, int64_t n) {
    if (from != to) std::memcpy(to, from, sizeof(T) * static_cast<size_t>(n));
}

template <class T>
Made make_sgd(const KernelContext& c) {
    const int64_t n = c.elements(c.in(0));
    const double mu = c.op.number("momentum"), decay = c.op.number("weight_decay");
    const bool nesterov = c.op.integer("nesterov") != 0, remembers = c.op.out.size() == 2;
    return kernel_from([=](const KernelArgs& a) {
        const StepControl s = StepControl::read(in<double>(a, remembers ? 3 : 2));
        const T *w0 = in<T>(a, 0), *g0 = in<T>(a, 1);
        T *w = static_cast<T*>(a.out[0]), *b = remembers ? static_cast<T*>(a.out[1]) : nullptr;
        if (!s.commit) return keep(w0, w, n);
        for (int64_t i = 0; i < n; ++i) {
            const double old = static_cast<double>(w0[i]), g = static_cast<double>(g0[i]) * s.clip + decay * old;
            double direction = g;
            if (b) {
                const double b1 = mu * static_cast<double>(b[i]) + g;
                direction = nesterov ? g + mu * b1 : b1;
                b[i] = static_cast<T>(b1);
            }
            w[i] = static_cast<T>(old - s.lr * direction);
        }
    });
}

template <class T>
Made make_muon_momentum(const KernelContext& c) {
    const int64_t n = c.elements(c.in(0));
    const double mu = c.op.number("momentum");
    const bool nesterov = c.op.integer("nesterov") != 0;
    return kernel_from([=](const KernelArgs& a) {
        const StepControl s = StepControl::read(in<double>(a, 2));
        const T* g0 = in<T>(a, 0);
        T *u = static_cast<T*>(a.out[0]), *b = static_cast<T*>(a.out[1]);
        for (int64_t i = 0; i < n; ++i) {
            const double g = s.commit ? static_cast<double>(g0[i]) * s.clip : 0, old = static_cast<double>(b[i]);
            const double b1 = s.commit ? old + (1 - mu) * (g - old) : old;
            u[i] = static_cast<T>(!s.commit ? 0 : nesterov ? g + mu * (b1 - g) : b1);
            b[i] = static_cast<T>(b1);
        }
    });
}

template <class T>
Made make_muon(const KernelContext& c) {
    const int64_t n = c.elements(c.in(0));
    const double decay = c.op.number("weight_decay");
    return kernel_from([=](const KernelArgs& a) {
        const StepControl s = StepControl::read(in<double>(a, 2));
        const T *w0 = in<T>(a, 0), *o = in<T>(a, 1);
        T* w = static_cast<T*>(a.out[0]);
        if (!s.commit) return keep(w0, w, n);
        for (int64_t i = 0; i < n; ++i)
            w[i] = static_cast<T>(static_cast<double>(w0[i]) * (1 - s.lr * decay) - s.lr * static_cast<double>(o[i]));
    });
}

// Of an island that is the only one.
template <class T>
Made make_meet(const KernelContext& c) {
    const int64_t n = c.elements(c.in(0)), bits = c.op.integer("bits");
    return kernel_from([n, bits, islands = c.op.integer("islands")](const KernelArgs& a) {
        const std::span<const T> x(in<T>(a, 0), static_cast<size_t>(n));
        const std::span<T> y(static_cast<T*>(a.out[0]), static_cast<size_t>(n));
        std::vector<char> q(static_cast<size_t>(bits != 0 ? quantized_bytes(n, bits) : 0));
        const auto round = [&] {
            if (bits == 0) return;
            to_int8(std::span<const T>(y), std::span(q));
            from_int8(std::span<const char>(q), y);
        };
        std::copy(x.begin(), x.end(), y.begin());
        round();
        for (T& v : y) v *= static_cast<T>(islands);
        round();
    });
}

template <class T>
Made make_outer(const KernelContext& c) {
    const int64_t n = c.elements(c.in(0));
    if (c.op.kind == "outer_gradient")
        return kernel_from([n, scale = c.op.number("scale")](const KernelArgs& a) {
            for (int64_t i = 0; i < n; ++i)
                static_cast<T*>(a.out[0])[i] =
                    static_cast<T>(scale * (static_cast<double>(in<T>(a, 0)[i]) - static_cast<double>(in<T>(a, 1)[i])));
        });
    if (c.op.kind == "meet") return make_meet<T>(c);
    const double lr = c.op.number("lr"), mu = c.op.number("momentum"), alpha = c.op.number("alpha");
    const bool nesterov = c.op.integer("nesterov") != 0, remembers = c.op.out.size() == 3;
    return kernel_from([=](const KernelArgs& a) {
        const T *w0 = in<T>(a, 0), *g0 = in<T>(a, 2);
        T *w = static_cast<T*>(a.out[0]), *anchor = static_cast<T*>(a.out[1]);
        T* const b = remembers ? static_cast<T*>(a.out[2]) : nullptr;
        for (int64_t i = 0; i < n; ++i) {
            const double g = static_cast<double>(g0[i]), b1 = b ? mu * static_cast<double>(b[i]) + g : 0;
            const double direction = !b ? g : nesterov ? g + mu * b1 : b1;
            const double agreed = static_cast<double>(anchor[i]) - lr * direction;
            w[i] = static_cast<T>(agreed + alpha * (static_cast<double>(w0[i]) - agreed));
            anchor[i] = static_cast<T>(agreed);
            if (b) b[i] = static_cast<T>(b1);
        }
    });
}

}  // namespace

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
    if (c.op.kind == "outer_gradient" || c.op.kind == "meet" || c.op.kind == "outer_sgd") return make_outer<T>(c);
    if (c.op.kind == "sgd") return make_sgd<T>(c);
    if (c.op.kind == "muon_momentum") return make_muon_momentum<T>(c);
    if (c.op.kind == "muon") return make_muon<T>(c);
    const bool coupled = c.op.kind == "adam";  // decay is part of the gradient
    ensure(coupled || c.op.kind == "adamw", "reference optimizer: " + c.op.kind);
    const int64_t n = c.elements(c.in(0));
    const double beta1 = c.op.number("beta1"), beta2 = c.op.number("beta2"), eps = c.op.number("eps"),
                 decay = c.op.number("weight_decay");
    const bool writes_narrow = c.op.out.size() > 3, draws = c.op.attrs.contains("seed");
    return kernel_from([=, drawn = draws ? rank_draws(c) : ElementDraws{}](const KernelArgs& a) {
        const StepControl s = StepControl::read(in<double>(a, draws ? 5 : 4));
        const uint32_t noise = draws ? rounding_noise(drawn.seed, *in<double>(a, 4)) : 0;
        const T *w0 = in<T>(a, 0), *g0 = in<T>(a, 1);
        T *w = static_cast<T*>(a.out[0]), *m = static_cast<T*>(a.out[1]), *v = static_cast<T*>(a.out[2]);
        if (!s.commit && w != w0) std::memcpy(w, w0, sizeof(T) * n);
        for (int64_t i = 0; s.commit && i < n; ++i) {
            const double old = static_cast<double>(w0[i]);
            const double g = static_cast<double>(g0[i]) * s.clip + (coupled ? decay * old : 0);
            const double m1 = beta1 * static_cast<double>(m[i]) + (1 - beta1) * g,
                         v1 = beta2 * static_cast<double>(v[i]) + (1 - beta2) * g * g;
            const double decayed = coupled ? old : old * (1 - s.lr * decay);
            w[i] =
                static_cast<T>(decayed - s.lr / s.bias_correction1 * m1 / (std::sqrt(v1) / std::sqrt(s.bias_correction2) + eps));
            m[i] = static_cast<T>(m1);
            v[i] = static_cast<T>(v1);
            if (!draws) continue;
            const ElementDraws::Row row = drawn.row_at(i, noise, static_cast<uint64_t>(a.instance));
            v[i] = static_cast<T>(rounded_to_bf16(v1, dropout_bits(row.row, row.index)));
        }
        if (writes_narrow) std::copy(w, w + n, static_cast<T*>(a.out[3]));
    });
}

template Made make_optimizer<float>(const KernelContext&);
template Made make_optimizer<double>(const KernelContext&);

}  // namespace lockstep::kernels::reference
