// The pieces of a cross-entropy over a sharded vocabulary: local maximum, local sum of exponentials and target logit, gradient.
// The reductions between them are the sharding pass's; nothing here knows of them.
#include "ops/shapes.h"

namespace lockstep::ops {
namespace {

using Span = std::span<const TensorId>;

// max(x) {over}: the result lacks `over`. No derivative: it only shifts logits, and a shift is a constant.
OpRule max() {
    OpRule r;
    r.name = ir::kMax;
    r.operands = 1, r.results = 1;
    r.attrs = {{"over", AttrType::Text}};
    r.check = [](const Routine& rt, const Op& op) {
        const bool last = !dims_of(rt, op.in[0]).empty() && dims_of(rt, op.in[0]).back() == rt.dim(op.text("over"));
        return last ? std::string() : fmt::format("{} is the last dim", op.text("over"));
    };
    r.sharding = {.reduce = ir::Reduce::Max};
    r.precision = {.wide = true, .logits = 0};
    return r;
}

// exp_shifted(x [..., vocab], m [...]) = exp(x - m), m held constant.
OpRule exp_shifted() {
    OpRule r;
    r.name = "exp_shifted";
    r.operands = 2, r.results = 1;
    r.check = [](const Routine& rt, const Op& op) { return same_dims(rt, op.in[0], op.out[0]); };
    r.derivative = [](Builder& b, const Op& op, Span dy) {
        return std::vector<TensorId>{b.einsum("d." + b.tensor(op.in[0]).name + ".part", b.dims(op.in[0]), {dy[0], op.out[0]}),
                                     -1};
    };
    return r;
}

// Columns of vocab past its valid size become `fill`.
OpRule mask_padding() {
    OpRule r;
    r.name = ir::kMaskPadding;
    r.operands = 1, r.results = 1;
    r.attrs = {{"fill", AttrType::Number}};
    r.check = [](const Routine& rt, const Op& op) { return same_dims(rt, op.in[0], op.out[0]); };
    r.derivative = [](Builder& b, const Op& op, Span dy) {
        return b.op(ir::kMaskPadding, {dy[0]}, {part_of(b.routine(), op.in[0])}, {{"fill", 0.0}});
    };
    r.memory = {.in_place = 0};
    r.precision = {.any_dtype = true};
    return r;
}

// cross_entropy(logits [..., vocab], m [...], targets [...]) -> z = sum of exp(logits - m), t = the target's logit.
// loss = log z + m - t, once z and t are summed over the shards of vocab.
OpRule cross_entropy() {
    OpRule r;
    r.name = ir::kCrossEntropy;
    r.operands = 3, r.results = 2;
    r.check = [](const Routine& rt, const Op& op) { return same_dims(rt, op.in[1], op.out[0]); };
    r.expand = [](Builder& b, const Op& op) -> std::vector<TensorId> {
        const TensorId logits = op.in[0], m = op.in[1], targets = op.in[2];
        const TensorId e = b.op("exp_shifted", {logits, m}, {{"e", b.dims(logits)}})[0];
        const TensorId z = b.einsum("z", b.dims(m), {e});
        return {z, b.op("pick", {logits, targets}, {{"t", b.dims(m)}})[0]};
    };
    r.flops = [](const mesh::Mesh& m, const Routine& rt, const Op& op) {
        return Flops{0, 2.0 * static_cast<double>(ir::local_elements(m, rt, rt.tensors[op.in[0]]))};
    };
    return r;
}

}  // namespace

std::vector<OpRule> loss_rules() {
    const CompositeBackward backward = {ir::kCrossEntropyBackward, {0, 1}, {0}, {}};
    OpRule forward = cross_entropy();
    forward.derivative = composite_derivative(backward);
    forward.precision = {.wide = true, .logits = 0};
    OpRule back = backward_rule(forward, backward);
    back.precision = {.wide_in = {0, 1, 3}, .logits = 2};  // its result, the logits' gradient, may be bfloat16
    back.memory.in_place = 2;                              // over the logits
    return {max(), exp_shifted(), mask_padding(), forward, back};
}

}  // namespace lockstep::ops
