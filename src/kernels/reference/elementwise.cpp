#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"
#include "kernels/reference/reference.h"

namespace lockstep::kernels::reference {
namespace {

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// GELU = x * share(x). The tanh form: share = (1 + tanh(u)) / 2, u = sqrt(2 / pi) (x + 0.044715 x^3); else Phi(x).
double gelu(double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x))); }
double gelu_slope(double x) {
    const double root = std::sqrt(2 / std::numbers::pi), t = std::tanh(root * (x + 0.044715 * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * root * (1 + 3 * 0.044715 * x * x);
}
double phi(double x) { return 0.5 * std::erfc(-x / std::numbers::sqrt2); }
double gelu_erf_slope(double x) { return phi(x) + x * std::exp(-0.5 * x * x) / std::sqrt(2 * std::numbers::pi); }

template <class T>
Made make_unary(const KernelContext& c) {
    const int64_t n = c.elements(c.out(0));
    const std::string fn = c.op.text("fn");
    const auto map = [&](auto f) {
        return kernel_from([n, f, op = c.op](const KernelArgs& a) {
            const Store<T> out = store<T>(a, op, 0);
            for (int64_t i = 0; i < n; ++i) out(i, f(static_cast<double>(in<T>(a, 0)[i])));
        });
    };
    if (fn == "valid") {
        return kernel_from([n](const KernelArgs& a) {
            for (int64_t i = 0; i < n; ++i) static_cast<T*>(a.out[0])[i] = in<int32_t>(a, 0)[i] >= 0 ? T(1) : T(0);
        });
    }
    if (fn == "log") return map([](double x) { return std::log(x); });
    if (fn == "recip") return map([](double x) { return 1 / x; });
    if (fn == "silu") return map([](double x) { return x * sigmoid(x); });
    if (fn == "dsilu")
        return map([](double x) {
            const double s = sigmoid(x);
            return s * (1 + x * (1 - s));
        });
    if (fn == "gelu") return map(gelu);
    if (fn == "dgelu") return map(gelu_slope);
    if (fn == "gelu_erf") return map([](double x) { return x * phi(x); });
    if (fn == "dgelu_erf") return map(gelu_erf_slope);
    if (fn == "rsqrt_mean") {
        const double eps = c.op.number("eps"), inverse = 1.0 / static_cast<double>(c.op.integer("n"));
        return map([eps, inverse](double x) { return 1 / std::sqrt(x * inverse + eps); });
    }
    if (fn == "inverse_norm") return map([eps = c.op.number("eps")](double x) { return 1 / std::max(std::sqrt(x), eps); });
    throw InternalError("reference.unary does not know " + fn);
}

}  // namespace

template <class T>
Made make_elementwise(const KernelContext& c) {
    if (c.op.kind == "unary") return make_unary<T>(c);
    const int64_t n = c.elements(c.out(0));
    if (c.op.kind == "scale") {
        return kernel_from([n, factor = c.op.number("c")](const KernelArgs& a) {
            for (int64_t i = 0; i < n; ++i)
                static_cast<T*>(a.out[0])[i] = static_cast<T>(static_cast<double>(in<T>(a, 0)[i]) * factor);
        });
    }
    return kernel_from([n, terms = static_cast<int>(c.op.in.size())](const KernelArgs& a) {
        for (int64_t i = 0; i < n; ++i) {
            double sum = 0;
            for (int k = 0; k < terms; ++k) sum += static_cast<double>(in<T>(a, k)[i]);
            static_cast<T*>(a.out[0])[i] = static_cast<T>(sum);
        }
    });
}

template Made make_elementwise<float>(const KernelContext&);
template Made make_elementwise<double>(const KernelContext&);

}  // namespace lockstep::kernels::reference
