// bias(x, b): b is added to every row of x; it has the last dims of x. Not linear in x by itself: a partial sum is reduced
// before, so the bias is added once, not once a rank.
// bias_gelu(x, b) {fn}: GELU of it, fn one of unary's that has a slope (Hendrycks & Gimpel 2016, arXiv 1606.08415). Only x is
// saved; the result is run again.
// gelu(x) {fn}: the same of an operand that has its bias (passes/keep_preactivations).
#include "ops/shapes.h"

namespace lockstep::ops {
namespace {

std::string check_bias(const Routine& rt, const Op& op) {
    const std::vector<DimId>&x = dims_of(rt, op.in[0]), &b = dims_of(rt, op.in[1]);
    if (b.size() > x.size() || !std::equal(b.rbegin(), b.rend(), x.rbegin())) return "the bias has the last dims of operand 0";
    return same_dims(rt, op.in[0], op.out[0]);
}

OpRule bias() {
    OpRule r;
    r.name = ir::kBias;
    r.operands = 2, r.results = 1;
    r.check = check_bias;
    r.derivative = [](Builder& b, const Op& op, std::span<const TensorId> dy) {
        return std::vector<TensorId>{dy[0], b.einsum("d." + b.tensor(op.in[1]).name + ".part", b.dims(op.in[1]), {dy[0]})};
    };
    r.expand = [](Builder& b, const Op& op) {
        const TensorId rows = b.einsum(b.tensor(op.in[1]).name + ".rows", b.dims(op.in[0]), {op.in[1]});
        return std::vector<TensorId>{b.add(b.tensor(op.in[0]).name + ".biased", {op.in[0], rows})};
    };
    r.memory = {.in_place = 0};
    return r;
}

OpRule bias_gelu() {
    OpRule r;
    r.name = ir::kBiasGelu;
    r.operands = 2, r.results = 1;
    r.attrs = {{"fn", AttrType::Text}};
    r.check = [](const Routine& rt, const Op& op) { return first_of({check_bias(rt, op), has_slope(op.text("fn"))}); };
    r.expand = [](Builder& b, const Op& op) {
        const std::string name = b.tensor(op.in[0]).name;
        const TensorId biased = b.op(ir::kBias, {op.in[0], op.in[1]}, {{name + ".biased", b.dims(op.in[0])}})[0];
        return std::vector<TensorId>{b.unary(name + ".act", op.text("fn"), biased)};
    };
    r.memory = {.always_recomputed = true};
    r.kept = {.operands = {0, 1}};
    return r;
}

OpRule gelu() {
    OpRule r;
    r.name = ir::kGelu;
    r.operands = 1, r.results = 1;
    r.attrs = {{"fn", AttrType::Text}};
    r.check = [](const Routine& rt, const Op& op) {
        return first_of({same_dims(rt, op.in[0], op.out[0]), has_slope(op.text("fn"))});
    };
    r.expand = [](Builder& b, const Op& op) {
        return std::vector<TensorId>{b.unary(b.tensor(op.in[0]).name + ".act", op.text("fn"), op.in[0])};
    };
    r.memory = {.always_recomputed = true, .in_place = 0};
    return r;
}

// Gives the forward its derivative. Returns the rule of the backward, which is linear in the cotangent.
OpRule backward_of(OpRule& forward, const CompositeBackward& backward) {
    forward.derivative = composite_derivative(backward);
    OpRule r = backward_rule(forward, backward);
    r.check = [check = r.check](const Routine& rt, const Op& op) { return first_of({check(rt, op), has_slope(op.text("fn"))}); };
    r.sharding.linear = {0};
    return r;
}

}  // namespace

std::vector<OpRule> bias_rules() {
    OpRule of_both = bias_gelu(), without_bias = gelu();
    const OpRule both_backward = backward_of(of_both, {"bias_gelu_backward", {0}, {0, 1}, {}});
    OpRule without_backward = backward_of(without_bias, {ir::kGeluBackward, {0}, {0}, {}});
    without_backward.memory.in_place = 0;
    return {bias(), of_both, both_backward, without_bias, without_backward};
}

}  // namespace lockstep::ops
