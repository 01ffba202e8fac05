// add, scale, cast, unary, rename, accumulate, swiglu: ops that work element by element;
// stack and unstack, which move elements.
#include <map>

#include "ops/shapes.h"

namespace lockstep::ops {
namespace {

using Span = std::span<const TensorId>;

OpRule add() {
    OpRule r;
    r.name = ir::kAdd;
    r.check = [](const Routine& rt, const Op& op) {
        for (TensorId t : op.in) {
            if (dims_of(rt, t) != dims_of(rt, op.in[0])) return same_dims(rt, t, op.in[0]);
        }
        return op.in.empty() ? std::string("takes one operand or more") : same_dims(rt, op.out[0], op.in[0]);
    };
    r.derivative = [](Builder&, const Op& op, Span dy) { return std::vector<TensorId>(op.in.size(), dy[0]); };
    r.sharding = {.linear_in_all_together = true};
    r.memory = {.in_place = 0};
    r.precision = {.any_dtype = true, .wide_if_any = true};
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
    r.sharding = {.linear = {0}, .linear_unconditionally = true};
    r.memory = {.in_place = 0};
    r.precision = {.any_dtype = true};
    return r;
}

// The same values in another element type, written by set_precision. A partial sum passes where the result is the wider type.
OpRule cast() {
    OpRule r;
    r.name = ir::kCast;
    r.operands = 1, r.results = 1;
    r.check = [](const Routine& rt, const Op& op) { return first_of({floats(rt, op), same_dims(rt, op.in[0], op.out[0])}); };
    r.sharding = {.linear = {0}};
    return r;
}

// The functions that have a slope, and its name.
const std::map<std::string_view, const char*> kSlopes = {
    {"log", "recip"}, {"silu", "dsilu"}, {"gelu", "dgelu"}, {"gelu_erf", "dgelu_erf"}};

std::string unknown(const std::string& fn) { return "does not know the function " + fn; }

// fn: log, recip, silu, gelu (its tanh form) and gelu_erf, with their slopes; rsqrt_mean: (x / n + eps)^-1/2; inverse_norm, of
// a sum of squares: 1 / max(x^1/2, eps); valid: 1 where an integer is not negative, else 0.
OpRule unary() {
    OpRule r;
    r.name = ir::kUnary;
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
    r.memory = {.in_place = 0};
    r.kept = {.operands = {0}};
    r.precision = {.any_dtype = true};
    return r;
}

// The same values under another name of a dim: seq <-> kv_seq. Local, so neither name may be sharded, but where both are
// aligned: a rank's own tokens.
OpRule rename() {
    OpRule r;
    r.name = ir::kRename;
    r.operands = 1, r.results = 1;
    r.check = [](const Routine& rt, const Op& op) {
        return dims_of(rt, op.in[0]).size() == dims_of(rt, op.out[0]).size() ? std::string()
                                                                             : std::string("keeps the number of dims");
    };
    r.derivative = [](Builder& b, const Op& op, Span dy) -> std::vector<TensorId> {
        if (b.tensor(op.in[0]).dtype == Dtype::I32) return {-1};
        return b.op(ir::kRename, {dy[0]}, {part_of(b.routine(), op.in[0])});
    };
    r.sharding = {.unsplit =
                      [](const Routine& rt, const Op& op) {
                          const DimId keys = rt.dim(DimRole::KvSeq);
                          const bool splits = keys >= 0 && rt.dims[keys].of >= 0;
                          return splits ? std::vector<DimId>{} : with_roles({DimRole::Seq, DimRole::KvSeq})(rt, op);
                      },
                  .linear = {0},
                  .linear_unconditionally = true,
                  .aligned = true};
    r.copies = true;
    r.memory = {.always_recomputed = true, .view = true, .in_place = 0, .rewrites = {{0, 0}}};
    r.flops = [](const mesh::Mesh&, const Routine&, const Op&) { return Flops{}; };
    r.precision = {.any_dtype = true};
    return r;
}

// Adds into a port's tensor; keeps any partial sum. Widening casts are part of it.
OpRule accumulate() {
    OpRule r;
    r.name = "accumulate";
    r.accumulates = true;
    r.operands = 1, r.results = 1;
    r.check = [](const Routine& rt, const Op& op) { return same_dims(rt, op.in[0], op.out[0]); };
    r.sharding = {.linear = {0}, .linear_unconditionally = true};
    r.precision = {.any_dtype = true};
    return r;
}

// The dim that `whole` has and its parts lack; -1: they differ otherwise.
DimId stacked_dim(const Routine& r, TensorId whole, TensorId part) {
    for (const DimId d : dims_of(r, whole)) {
        if (Builder::without(dims_of(r, whole), d) == dims_of(r, part)) return d;
    }
    return -1;
}
std::string stacks(const Routine& r, TensorId whole, std::span<const TensorId> parts) {
    for (const TensorId t : parts) {
        const DimId d = stacked_dim(r, whole, t);
        if (d < 0) return fmt::format("{} has the dims of {} but one", r.tensors[t].name, r.tensors[whole].name);
        if (r.dims[d].size != static_cast<int64_t>(parts.size()))
            return fmt::format("{} parts are not the {} of {}", parts.size(), r.dims[d].size, r.dims[d].name);
    }
    return parts.empty() ? "has one part or more" : "";
}
// For Sharding::unsplit.
std::vector<DimId> stacked_dims(const Routine& r, const Op& op) {
    const TensorId a = op.in[0], b = op.out[0];
    const bool stacks = dims_of(r, a).size() < dims_of(r, b).size();
    return {stacked_dim(r, stacks ? b : a, stacks ? a : b)};
}

// x[.., n, ..] -> n tensors without that dim, which is whole on every rank.
OpRule unstack() {
    OpRule r;
    r.name = "unstack";
    r.operands = 1;
    r.check = [](const Routine& rt, const Op& op) { return stacks(rt, op.in[0], op.out); };
    r.derivative = [](Builder& b, const Op& op, Span d_out) -> std::vector<TensorId> {
        return b.op("stack", {d_out.begin(), d_out.end()}, {part_of(b.routine(), op.in[0])});
    };
    r.sharding = {.unsplit = stacked_dims, .linear = {0}, .linear_unconditionally = true};
    r.flops = [](const mesh::Mesh&, const Routine&, const Op&) { return Flops{}; };
    r.precision = {.any_dtype = true};
    return r;
}

// The inverse: n tensors -> x[.., n, ..].
OpRule stack() {
    OpRule r;
    r.name = "stack";
    r.results = 1;
    r.check = [](const Routine& rt, const Op& op) { return stacks(rt, op.out[0], op.in); };
    r.derivative = [](Builder& b, const Op& op, Span dy) {
        std::vector<Result> parts;
        for (const TensorId t : op.in) parts.push_back(part_of(b.routine(), t));
        return b.op("unstack", {dy[0]}, parts);
    };
    r.sharding = {.unsplit = stacked_dims};
    r.flops = unstack().flops;
    r.precision = {.any_dtype = true};
    return r;
}

// silu(gate) * up (Shazeer 2020, arXiv 2002.05202). Operands are gate and up, or one that holds both, as passes/pack_products
// makes it: [.., 2, ffn].
OpRule swiglu() {
    OpRule r;
    r.name = ir::kSwiglu;
    r.results = 1;
    r.check = [](const Routine& rt, const Op& op) -> std::string {
        if (op.in.size() == 2) return first_of({same_dims(rt, op.in[0], op.in[1]), same_dims(rt, op.in[0], op.out[0])});
        if (op.in.size() != 1) return "takes gate and up, or one operand that holds both";
        const std::vector<DimId>& both = dims_of(rt, op.in[0]);
        const DimId d = stacked_dim(rt, op.in[0], op.out[0]);
        return d >= 0 && both.size() > 1 && both[both.size() - 2] == d && rt.dims[d].size == 2
                   ? ""
                   : fmt::format("{} is not gate and up for each row of {}", rt.tensors[op.in[0]].name,
                                 rt.tensors[op.out[0]].name);
    };
    r.sharding = {.unsplit = [](const Routine& rt, const Op& op) {
        return op.in.size() == 1 ? stacked_dims(rt, op) : std::vector<DimId>{};
    }};
    r.expand = [](Builder& b, const Op& op) {
        std::vector<TensorId> in = op.in;
        const std::string name = b.tensor(in[0]).name;
        if (in.size() == 1) {
            Result half{name + ".half", b.dims(in[0]), b.tensor(in[0]).dtype};
            half.dims.erase(half.dims.end() - 2);
            in = b.op("unstack", in, {half, half});
        }
        const TensorId act = b.unary(name + ".act", "silu", in[0]);
        return std::vector<TensorId>{b.einsum(name + ".product", b.dims(in[0]), {act, in[1]})};
    };
    r.gives_amax = true;
    r.kept = {.operands = {0, 1}};
    return r;
}

// d_y, gate, up -> d_gate, d_up; or d_y, both -> d_both. With one result more, the last: the forward's, for a backward that
// runs it again (passes/fuse_ops).
OpRule swiglu_backward(OpRule& forward) {
    const std::string_view name = ir::kSwigluBackward;
    const CompositeBackward apart = {name, {0}, {0, 1}, {}, true}, packed = {name, {0}, {0}, {}, true};
    forward.derivative = [a = composite_derivative(apart), p = composite_derivative(packed)](Builder& b, const Op& op, Span dy) {
        return op.in.size() == 1 ? p(b, op, dy) : a(b, op, dy);
    };
    OpRule r = backward_rule(forward, apart);
    const OpRule of_packed = backward_rule(forward, packed);
    const auto is_packed = [](const Op& op) { return op.in.size() == 2; };
    r.check = [=, a = r.check](const Routine& rt, const Op& op) -> std::string {
        if (op.in.size() != 2 && op.in.size() != 3) return "takes a cotangent, and gate and up or one operand that holds both";
        if (!is_packed(op)) return a(rt, op);
        if (const std::string wrong = of_packed.check(rt, op); !wrong.empty()) return wrong;
        Op again;
        again.kind = ir::kSwiglu, again.in = {op.in[1]}, again.out = {op.in[0]};
        return check_op(rt, again);
    };
    r.sharding.unsplit = [](const Routine& rt, const Op& op) {
        if (op.in.size() != 2) return std::vector<DimId>{};
        return std::vector<DimId>{stacked_dim(rt, op.in[1], op.in[0])};
    };
    r.expand = [=, a = r.expand](Builder& b, const Op& op) { return is_packed(op) ? of_packed.expand(b, op) : a(b, op); };
    r.gives_amax = true;
    r.sharding.linear = {0};
    return r;
}

}  // namespace

std::string has_slope(const std::string& fn) { return kSlopes.contains(fn) ? std::string() : unknown(fn); }

std::vector<OpRule> elementwise_rules() {
    OpRule forward = swiglu();
    const OpRule backward = swiglu_backward(forward);
    return {add(), scale(), cast(), unary(), rename(), accumulate(), stack(), unstack(), forward, backward};
}

}  // namespace lockstep::ops
