// add, scale, cast, unary, rename, accumulate, swiglu: ops that work element by element.
#include <map>

#include "ops/shapes.h"

namespace lockstep::ops {
namespace {

using Span = std::span<const TensorId>;

OpRule add() {
    OpRule r;
    r.name = "add";
    r.check = [](const Routine& rt, const Op& op) {
        for (TensorId t : op.in) {
            if (dims_of(rt, t) != dims_of(rt, op.in[0])) return same_dims(rt, t, op.in[0]);
        }
        return op.in.empty() ? std::string("takes one operand or more") : same_dims(rt, op.out[0], op.in[0]);
    };
    r.derivative = [](Builder&, const Op& op, Span dy) { return std::vector<TensorId>(op.in.size(), dy[0]); };
    r.linear_in_all_together = true;
    r.in_place = 0;
    r.any_dtype = true;
    return r;
}

OpRule scale() {
    OpRule r;
    r.name = "scale";
    r.operands = 1, r.results = 1;
    r.attrs = {{"c", AttrType::Number}};
    r.check = [](const Routine& rt, const Op& op) { return same_dims(rt, op.in[0], op.out[0]); };
    r.derivative = [](Builder& b, const Op& op, Span dy) {
        return std::vector<TensorId>{b.scale("d." + b.tensor(op.in[0]).name + ".part", dy[0], op.number("c"))};
    };
    r.linear = {0};
    r.linear_unconditionally = true;
    r.in_place = 0;
    r.any_dtype = true;
    return r;
}

// The same values in another element type, written by set_precision. A partial sum passes where the result is the wider type.
OpRule cast() {
    OpRule r;
    r.name = "cast";
    r.operands = 1, r.results = 1;
    r.check = [](const Routine& rt, const Op& op) { return first_of({floats(rt, op), same_dims(rt, op.in[0], op.out[0])}); };
    r.linear = {0};
    return r;
}

// The functions that have a slope, and its name.
const std::map<std::string_view, const char*> kSlopes = {
    {"log", "recip"}, {"silu", "dsilu"}, {"gelu", "dgelu"}, {"gelu_erf", "dgelu_erf"}};

std::string unknown(const std::string& fn) { return "does not know the function " + fn; }

// fn: log, recip, silu, gelu (its tanh form) and gelu_erf, with their slopes; rsqrt_mean: (x / n + eps)^-1/2; inverse_norm, of a
// sum of squares: 1 / max(x^1/2, eps); valid: 1 where an integer is not negative, else 0.
OpRule unary() {
    OpRule r;
    r.name = "unary";
    r.operands = 1, r.results = 1;
    r.attrs = {{"fn", AttrType::Text}, {"n", AttrType::Integer, true}, {"eps", AttrType::Number, true}};
    r.check = [](const Routine& rt, const Op& op) {
        const std::string wrong = same_dims(rt, op.in[0], op.out[0]);
        if (!wrong.empty()) return wrong;
        const std::string& fn = op.text("fn");
        if (fn == "rsqrt_mean") return has(op, {"n", "eps"});
        if (fn == "inverse_norm") return has(op, {"eps"});
        bool known = fn == "valid";
        for (const auto& [name, slope] : kSlopes) known = known || fn == name || fn == slope;
        return known ? std::string() : unknown(fn);
    };
    r.derivative = [](Builder& b, const Op& op, Span dy) -> std::vector<TensorId> {
        const std::string& fn = op.text("fn");
        const TensorId x = op.in[0], y = op.out[0];
        const std::string part = "d." + b.tensor(x).name + ".part";
        if (fn == "rsqrt_mean") {  // y = (x/n + eps)^-1/2, dy/dx = -y^3 / 2n
            const TensorId cube = b.einsum("d." + b.tensor(x).name + ".cube", b.dims(x), {dy[0], y, y, y});
            return {b.scale(part, cube, -0.5 / static_cast<double>(op.integer("n")))};
        }
        if (const auto it = kSlopes.find(fn); it != kSlopes.end()) {
            const TensorId slope = b.unary(b.tensor(x).name + "." + fn + "_slope", it->second, x);
            return {b.einsum(part, b.dims(x), {dy[0], slope})};
        }
        return {-1};
    };
    r.in_place = 0;
    r.any_dtype = true;
    return r;
}

// The same values under another name of a dim: seq <-> kv_seq. Local, so neither name may be sharded.
OpRule rename() {
    OpRule r;
    r.name = "rename";
    r.operands = 1, r.results = 1;
    r.check = [](const Routine& rt, const Op& op) {
        return dims_of(rt, op.in[0]).size() == dims_of(rt, op.out[0]).size() ? std::string()
                                                                             : std::string("keeps the number of dims");
    };
    r.derivative = [](Builder& b, const Op& op, Span dy) -> std::vector<TensorId> {
        if (b.tensor(op.in[0]).dtype == Dtype::I32) return {-1};
        return b.op("rename", {dy[0]}, {part_of(b.routine(), op.in[0])});
    };
    r.unsplit = with_roles({DimRole::Seq, DimRole::KvSeq});
    r.linear = {0};
    r.linear_unconditionally = true;
    r.always_recomputed = true;
    r.view = true;
    r.in_place = 0;
    r.rewrites = {{0, 0}};
    r.flops = [](const mesh::Mesh&, const Routine&, const Op&) { return Flops{}; };
    r.any_dtype = true;
    return r;
}

// Adds into a port's tensor; keeps any partial sum. Widening casts are part of it.
OpRule accumulate() {
    OpRule r;
    r.name = "accumulate";
    r.operands = 1, r.results = 1;
    r.check = [](const Routine& rt, const Op& op) { return same_dims(rt, op.in[0], op.out[0]); };
    r.linear = {0};
    r.linear_unconditionally = true;
    r.any_dtype = true;
    return r;
}

// silu(gate) * up (Shazeer 2020, arXiv 2002.05202). Only gate and up are saved; the product is run again.
OpRule swiglu() {
    OpRule r;
    r.name = "swiglu";
    r.operands = 2, r.results = 1;
    r.check = [](const Routine& rt, const Op& op) {
        return first_of({same_dims(rt, op.in[0], op.in[1]), same_dims(rt, op.in[0], op.out[0])});
    };
    r.expand = [](Builder& b, const Op& op) {
        const TensorId act = b.unary(b.tensor(op.in[0]).name + ".act", "silu", op.in[0]);
        return std::vector<TensorId>{b.einsum(b.tensor(op.in[0]).name + ".product", b.dims(op.in[0]), {act, op.in[1]})};
    };
    r.always_recomputed = true;
    return r;
}

}  // namespace

std::string has_slope(const std::string& fn) { return kSlopes.contains(fn) ? std::string() : unknown(fn); }

std::vector<OpRule> elementwise_rules() {
    const CompositeBackward backward = {"swiglu_backward", {0}, {0, 1}, {}};
    OpRule forward = swiglu();
    forward.derivative = composite_derivative(backward);
    OpRule back = backward_rule(forward, backward);
    back.linear = {0};
    return {add(), scale(), cast(), unary(), rename(), accumulate(), forward, back};
}

}  // namespace lockstep::ops
