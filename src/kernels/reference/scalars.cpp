// Ops whose results are scalars in double, whatever the element type of the model.
#include <algorithm>
#include <cmath>

#include "kernels/reference/reference.h"
#include "kernels/step_control.h"

namespace lockstep::kernels::reference {
namespace {

template <class T>
Made make_sum_squares(const KernelContext& c) {
    return kernel_from([n = c.elements(c.in(0)), owner = c.counts(), op = c.op](const KernelArgs& a) {
        double sum = 0;
        for (int64_t i = 0; owner && i < n; ++i) sum += static_cast<double>(in<T>(a, 0)[i]) * static_cast<double>(in<T>(a, 0)[i]);
        store<double>(a, op, 0)(0, sum);
    });
}

template <class T>
Made make_step_control(const KernelContext& c) {
    const double max_norm = c.op.number("max_norm"), beta1 = c.op.number("beta1"), beta2 = c.op.number("beta2");
    return kernel_from([=, is_scaled = c.op.in.size() == 6](const KernelArgs& a) {
        StepControl s{};
        const double norm2 = *in<double>(a, 0), loss_sum = *in<double>(a, 1), inv_n = static_cast<double>(*in<T>(a, 2));
        double& steps = *static_cast<double*>(a.out[1]);
        s.lr = *in<double>(a, 4);
        const double scale = is_scaled ? *in<double>(a, 5) : 1;
        s.grad_norm = std::sqrt(norm2) / scale;
        s.loss = loss_sum * inv_n;
        s.commit = std::isfinite(s.grad_norm) && std::isfinite(s.loss);
        s.clip = (max_norm > 0 && s.commit ? std::min(1.0, max_norm / (s.grad_norm + 1e-6)) : 1.0) / scale;
        if (s.commit) steps += 1;
        s.bias_correction1 = 1 - std::pow(beta1, std::max(steps, 1.0));
        s.bias_correction2 = 1 - std::pow(beta2, std::max(steps, 1.0));
        s.write(static_cast<double*>(a.out[0]));
    });
}

// A scale that grows stays one of float32, in which backward begins.
Made make_update_loss_scale(const KernelContext& c) {
    return kernel_from([least = c.op.number("least")](const KernelArgs& a) {
        double& scale = *static_cast<double*>(a.out[0]);
        double& tracker = *static_cast<double*>(a.out[1]);
        const double before = *in<double>(a, 0), counted = *in<double>(a, 1) + 1;
        const bool commit = StepControl::read(in<double>(a, 3)).commit, grows = commit && counted >= *in<double>(a, 2);
        scale = !commit ? std::max(before / 2, std::min(before, least)) : grows ? std::min(before * 2, 0x1p126) : before;
        tracker = commit && !grows ? counted : 0;
    });
}

}  // namespace

Made make_scalars(const KernelContext& c) {
    if (c.op.kind == "update_loss_scale") return make_update_loss_scale(c);
    if (c.op.kind == "owned") {
        return kernel_from([owner = c.counts() && !c.op.in.empty()](const KernelArgs& a) {
            *static_cast<double*>(a.out[0]) = owner ? *in<double>(a, 0) : 0;
        });
    }
    const bool is_double = c.in(c.op.kind == "step_control" ? 2 : 0).dtype == Dtype::F64;
    if (c.op.kind == "sum_squares") return is_double ? make_sum_squares<double>(c) : make_sum_squares<float>(c);
    return is_double ? make_step_control<double>(c) : make_step_control<float>(c);
}

}  // namespace lockstep::kernels::reference
