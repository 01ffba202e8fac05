// Norms over the last dim, `over`. What each saves for backward is x and its statistics. They read x as it comes: a wide
// residual stream is normed into a narrow result, and its cotangent made wide from a wide one.
// rmsnorm(x, w) -> y, rstd: y = x * rstd * w, rstd = (mean of x^2 + eps)^-1/2 (Zhang & Sennrich 2019, arXiv 1910.07467).
// layernorm(x, w, b) -> y, mean, rstd: y = (x - mean) * rstd * w + b, rstd = (mean of (x - mean)^2 + eps)^-1/2 (Ba et al. 2016,
// arXiv 1607.06450).
#include "ops/shapes.h"

namespace lockstep::ops {
namespace {

std::string check_norm(const Routine& rt, const Op& op) {
    const std::string wrong = same_dims(rt, op.in[0], op.out[0]);
    if (!wrong.empty()) return wrong;
    const DimId over = rt.dim(op.text("over"));
    for (size_t i = 1; i < op.in.size(); ++i) {
        if (dims_of(rt, op.in[i]) != std::vector<DimId>{over})
            return fmt::format("{} has the one dim {}", i == 1 ? "the weight" : "the bias", op.text("over"));
    }
    if (dims_of(rt, op.in[0]).empty() || dims_of(rt, op.in[0]).back() != over)
        return fmt::format("{} is the last dim", op.text("over"));
    for (size_t i = 1; i < op.out.size(); ++i) {
        if (dims_of(rt, op.out[i]) != Builder::without(dims_of(rt, op.in[0]), over)) return "rstd lacks the dim";
    }
    return "";
}

const std::vector<Attribute> kAttrs = {{"eps", AttrType::Number}, {"over", AttrType::Text}};

OpRule rmsnorm() {
    OpRule r;
    r.name = ir::kRmsnorm;
    r.operands = 2, r.results = 2;
    r.attrs = kAttrs;
    r.check = check_norm;
    r.sharding = {.unsplit = named_by_over};
    r.gives_amax = true;
    r.precision = {.wide_out = {1}};
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

OpRule layernorm() {
    OpRule r;
    r.name = "layernorm";
    r.operands = 3, r.results = 3;
    r.attrs = kAttrs;
    r.check = check_norm;
    r.sharding = {.unsplit = named_by_over};
    r.precision = {.wide_out = {1, 2}};
    r.expand = [](Builder& b, const Op& op) -> std::vector<TensorId> {
        const TensorId x = op.in[0];
        const DimId over = b.routine().dim(op.text("over"));
        const int64_t n = b.routine().dims[over].size;
        const std::vector<DimId> rows = Builder::without(b.dims(x), over), all = b.dims(x);
        const std::string name = b.tensor(x).name + ".norm";
        const TensorId mean = b.scale(name + ".m", b.einsum(name + ".s", rows, {x}), 1 / static_cast<double>(n));
        const TensorId shift = b.einsum(name + ".shift", all, {b.scale(name + ".minus_m", mean, -1.0)});
        const TensorId centred = b.add(name + ".c", {x, shift});
        const TensorId squares = b.einsum(name + ".ss", rows, {centred, centred});
        const TensorId rstd = b.unary(name + ".r", "rsqrt_mean", squares, {{"n", n}, {"eps", op.number("eps")}});
        const TensorId scaled = b.einsum(name + ".scaled", all, {b.einsum(name + ".hat", all, {centred, rstd}), op.in[1]});
        return {b.op("bias", {scaled, op.in[2]}, {{name + ".y", all}})[0], mean, rstd};
    };
    return r;
}

}  // namespace

std::vector<OpRule> norm_rules() {
    std::vector<OpRule> out;
    const auto add = [&](OpRule forward, const CompositeBackward& backward, std::string_view with_term,
                         std::vector<int> statistics) {
        forward.derivative = composite_derivative(backward);
        forward.precision.any_dtype = true;
        forward.norm_weight = 1;
        forward.kept = {.operands = {0}};
        OpRule back = backward_rule(forward, backward);
        back.precision.any_dtype = true;
        back.sharding.linear = {0};
        back.precision.wide_in = std::move(statistics);
        back.with_term = with_term;
        out.push_back(std::move(forward));
        out.push_back(std::move(back));
    };
    add(rmsnorm(), {"rmsnorm_backward", {0}, {0, 1}, {1}}, "rmsnorm_backward_add", {3});
    add(layernorm(), {"layernorm_backward", {0}, {0, 1, 2}, {1, 2}}, "layernorm_backward_add", {4, 5});
    return out;
}

}  // namespace lockstep::ops
