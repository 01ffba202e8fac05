// rmsnorm(x, w) -> y, rstd: y = x * rstd * w, rstd = (mean over `over` of x^2 + eps)^-1/2 (Zhang & Sennrich 2019, arXiv
// 1910.07467). Saved for backward: x and rstd.
#include "ops/shapes.h"

namespace lockstep::ops {
namespace {

OpRule rmsnorm() {
    OpRule r;
    r.name = "rmsnorm";
    r.operands = 2, r.results = 2;
    r.check = [](const Routine& rt, const Op& op) {
        const std::string wrong = first_of({has(op, {"eps", "over"}), same_dims(rt, op.in[0], op.out[0])});
        if (!wrong.empty()) return wrong;
        const DimId over = rt.dim(op.text("over"));
        if (dims_of(rt, op.in[1]) != std::vector<DimId>{over})
            return fmt::format("the weight has the one dim {}", op.text("over"));
        if (dims_of(rt, op.in[0]).empty() || dims_of(rt, op.in[0]).back() != over)
            return fmt::format("{} is the last dim", op.text("over"));
        return dims_of(rt, op.out[1]) == Builder::without(dims_of(rt, op.in[0]), over) ? std::string()
                                                                                       : std::string("rstd lacks the dim");
    };
    r.unsplit = [](const Op& op) { return std::vector<std::string>{op.text("over")}; };
    r.wide_out = {1};
    r.expand = [](Builder& b, const Op& op) -> std::vector<TensorId> {
        const TensorId x = op.in[0], w = op.in[1];
        const DimId over = b.routine().dim(op.text("over"));
        const std::vector<DimId> rows = Builder::without(b.dims(x), over);
        const std::string name = b.tensor(x).name + ".norm";
        const TensorId squares = b.einsum(name + ".ss", rows, {x, x});
        const TensorId rstd =
            b.unary(name + ".r", "rsqrt_mean", squares, {{"n", b.routine().dims[over].size}, {"eps", op.number("eps")}});
        const TensorId hat = b.einsum(name + ".hat", b.dims(x), {x, rstd});
        return {b.einsum(name + ".y", b.dims(x), {hat, w}), rstd};
    };
    return r;
}

}  // namespace

std::vector<OpRule> norm_rules() {
    const CompositeBackward backward = {"rmsnorm_backward", {0}, {0, 1}, {1}};
    OpRule forward = rmsnorm();
    forward.derivative = composite_derivative(backward);
    OpRule back = backward_rule(forward, backward);
    back.linear = {0};
    back.wide_in = {3};
    return {forward, back};
}

}  // namespace lockstep::ops
