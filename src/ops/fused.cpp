// Ops that no model writes: passes/fuse_ops puts one in the place of several, if the backend has a kernel for it that reads and
// writes less. Each expands into what it replaced.
// add_rmsnorm(x, y, w) -> s, n, rstd: s = x + y; n, rstd = rmsnorm(s, w)
// <norm>_backward_add(d_s, operands of <norm>_backward) -> d_x, d_w[, d_b]: the norm's d_x, and d_s added to it
// addmm(c, a, b) -> c + a b, a product of matrices (torch.addmm)
// linear(x, w, b) -> bias(x w, b), a product of matrices (torch.nn.functional.linear)
// linear_gelu(x, w, b) {fn} -> y[, z]: z = linear(x, w, b), y = gelu(z)
// matmul_dgelu(a, b, z) {fn} -> gelu_backward(a b, z)
// cross_entropy_gradient(d_nll, d_t, logits, targets) -> d_logits, m, z, t: m = max(logits); z, t = cross_entropy(logits, m,
//   targets); cross_entropy_backward with d_z = d_nll / z. A row is read from memory once, where the vocabulary is whole
// qkv_rope(x, w, pos) -> q, k, v: split_qkv of the product of x [.., hidden] and w [qkv, kv_heads, head_dim, hidden]
#include "ops/rope.h"
#include "ops/shapes.h"

namespace lockstep::ops {
namespace {

// A part of a fused op, as an op of its own.
Op piece_of(const Op& fused, std::string_view kind, std::vector<TensorId> in, std::vector<TensorId> out) {
    Op op = fused;
    op.kind = kind, op.in = std::move(in), op.out = std::move(out);
    op.attrs.erase("in_place");
    return op;
}
Op product_of(const Op& fused) {
    Op op = piece_of(fused, ir::kEinsum, {fused.in[0], fused.in[1]}, {fused.out[0]});
    op.attrs.clear();
    return op;
}
Op without_first_operand(const Op& fused, std::string_view kind) {
    return piece_of(fused, kind, {fused.in.begin() + 1, fused.in.end()}, fused.out);
}

OpRule add_rmsnorm() {
    OpRule r;
    r.name = ir::kAddRmsnorm;
    r.operands = 3, r.results = 3;
    r.check = [](const Routine& rt, const Op& op) {
        const Op norm = piece_of(op, ir::kRmsnorm, {op.out[0], op.in[2]}, {op.out[1], op.out[2]});
        return first_of({same_dims(rt, op.in[0], op.in[1]), same_dims(rt, op.in[0], op.out[0]), check_op(rt, norm)});
    };
    r.attrs = norm_rules()[0].attrs;
    r.sharding = {.unsplit = named_by_over};
    r.norm_weight = 2;
    r.gives_amax = true;
    r.precision = {.wide_out = {2}};
    r.memory = {.in_place = 0};
    r.kept = {.results = {0}};
    r.expand = [](Builder& b, const Op& op) -> std::vector<TensorId> {
        const TensorId s = b.add(b.tensor(op.in[0]).name + ".sum", {op.in[0], op.in[1]});
        const std::vector<DimId> rows = Builder::without(b.dims(s), b.routine().dim(op.text("over")));
        const auto n = b.op(ir::kRmsnorm, {s, op.in[2]}, {{"n", b.dims(s)}, {"rstd", rows}}, op.attrs);
        return {s, n[0], n[1]};
    };
    return r;
}

OpRule backward_add(const OpRule& backward) {
    const auto inner = [kind = backward.name](const Op& op) { return without_first_operand(op, kind); };
    OpRule r;
    r.name = backward.with_term;
    r.check = [inner](const Routine& rt, const Op& op) {
        if (op.in.size() < 2 || op.out.empty()) return std::string("adds one operand more");
        return first_of({check_op(rt, inner(op)), same_dims(rt, op.in[0], op.out[0])});
    };
    r.attrs = backward.attrs;
    r.sharding = {.unsplit = backward.sharding.unsplit};
    for (int i : backward.precision.wide_in) r.precision.wide_in.push_back(i + 1);
    r.memory = {.in_place = 0};
    r.flops = [inner](const mesh::Mesh& mesh, const Routine& rt, const Op& op) { return flops_of(mesh, rt, inner(op)); };
    r.expand = [inner](Builder& b, const Op& op) {
        const Op norm = inner(op);
        std::vector<Result> results;
        for (TensorId t : op.out) results.push_back(part_of(b.routine(), t));
        std::vector<TensorId> made = b.op(norm.kind, norm.in, results, op.attrs);
        made[0] = b.add("d.sum", {op.in[0], made[0]});
        return made;
    };
    return r;
}

OpRule addmm() {
    const auto product = [](const Op& op) { return without_first_operand(op, ir::kEinsum); };
    OpRule r;
    r.name = ir::kAddmm;
    r.operands = 3, r.results = 1;
    r.check = [product](const Routine& rt, const Op& op) {
        return first_of({same_dims(rt, op.in[0], op.out[0]), check_op(rt, product(op))});
    };
    r.sharding = {.linear = {0, 1, 2}, .addend = 0};
    r.memory = {.in_place = 0};
    r.kept = {.operands = {1, 2}, .of_product = true};
    r.flops = [product](const mesh::Mesh& mesh, const Routine& rt, const Op& op) { return flops_of(mesh, rt, product(op)); };
    r.expand = [](Builder& b, const Op& op) -> std::vector<TensorId> {
        return {b.add("sum", {op.in[0], b.einsum("product", b.dims(op.out[0]), {op.in[1], op.in[2]})})};
    };
    return r;
}

// A fused op whose first two operands are the factors of a product.
OpRule with_product(std::string_view name) {
    OpRule r;
    r.name = name;
    r.operands = 3;
    r.kept = {.operands = {0, 1}, .of_product = true};
    r.flops = [](const mesh::Mesh& mesh, const Routine& rt, const Op& op) { return flops_of(mesh, rt, product_of(op)); };
    return r;
}

std::string check_linear(const Routine& rt, const Op& op, TensorId result) {
    Op bias = piece_of(op, ir::kBias, {result, op.in[2]}, {result});
    bias.attrs.clear();
    return first_of({check_op(rt, product_of(op)), check_op(rt, bias)});
}
TensorId linear_of(Builder& b, const Op& op) {
    const std::vector<DimId> dims = b.dims(op.out[0]);
    return b.op(ir::kBias, {b.einsum("product", dims, {op.in[0], op.in[1]}), op.in[2]}, {{"linear", dims}})[0];
}

OpRule linear() {
    OpRule r = with_product(ir::kLinear);
    r.results = 1;
    r.check = [](const Routine& rt, const Op& op) { return check_linear(rt, op, op.out[0]); };
    r.expand = [](Builder& b, const Op& op) { return std::vector<TensorId>{linear_of(b, op)}; };
    return r;
}

OpRule linear_gelu() {
    OpRule r = with_product(ir::kLinearGelu);
    r.attrs = {{"fn", AttrType::Text}};
    r.check = [](const Routine& rt, const Op& op) -> std::string {
        if (op.out.empty() || op.out.size() > 2) return "gives GELU's result, and its operand where that is read";
        const TensorId z = op.out.back();
        return first_of({check_linear(rt, op, z), check_op(rt, piece_of(op, ir::kGelu, {z}, {op.out[0]}))});
    };
    r.expand = [](Builder& b, const Op& op) {
        const TensorId z = linear_of(b, op);
        std::vector<TensorId> made = b.op(ir::kGelu, {z}, {{"gelu", b.dims(z)}}, op.attrs);
        if (op.out.size() == 2) made.push_back(z);
        return made;
    };
    return r;
}

OpRule matmul_dgelu() {
    OpRule r = with_product(ir::kMatmulDgelu);
    r.results = 1;
    r.attrs = {{"fn", AttrType::Text}};
    r.check = [](const Routine& rt, const Op& op) {
        return first_of(
            {check_op(rt, product_of(op)), check_op(rt, piece_of(op, ir::kGeluBackward, {op.out[0], op.in[2]}, {op.out[0]}))});
    };
    r.sharding.linear = {0, 1};
    r.expand = [](Builder& b, const Op& op) {
        const std::vector<DimId> dims = b.dims(op.out[0]);
        return b.op(ir::kGeluBackward, {b.einsum("product", dims, {op.in[0], op.in[1]}), op.in[2]}, {{"dgelu", dims}}, op.attrs);
    };
    return r;
}

OpRule cross_entropy_gradient() {
    OpRule r;
    r.name = ir::kCrossEntropyGradient;
    r.operands = 4, r.results = 4;
    r.attrs = {{"over", AttrType::Text}};
    r.check = [](const Routine& rt, const Op& op) {
        const TensorId logits = op.in[2], d_logits = op.out[0], m = op.out[1];
        std::string wrong = first_of({check_op(rt, piece_of(op, ir::kMax, {logits}, {m})), same_dims(rt, logits, d_logits)});
        for (const TensorId of_row : {op.in[0], op.in[1], op.in[3], op.out[2], op.out[3]})
            wrong = first_of({wrong, same_dims(rt, m, of_row)});
        return wrong;
    };
    r.sharding = {.unsplit = named_by_over};
    r.precision = {.wide_in = {0, 1}, .wide_out = {1, 2, 3}, .logits = 2};
    r.memory = {.in_place = 2};
    r.flops = [](const mesh::Mesh& mesh, const Routine& rt, const Op& op) {
        return Flops{0, 4.0 * static_cast<double>(ir::local_elements(mesh, rt, rt.tensors[op.in[2]]))};
    };
    r.expand = [](Builder& b, const Op& op) -> std::vector<TensorId> {
        const TensorId d_nll = op.in[0], d_t = op.in[1], logits = op.in[2], targets = op.in[3];
        const std::vector<DimId> rows = b.dims(op.out[1]);
        const TensorId m = b.op(ir::kMax, {logits}, {{"m", rows}}, {{"over", op.text("over")}})[0];
        const std::vector<TensorId> ce = b.op(ir::kCrossEntropy, {logits, m, targets}, {{"z", rows}, {"t", rows}});
        const TensorId d_z = b.einsum("d.z", rows, {d_nll, b.unary("slope", "recip", ce[0])});
        const TensorId d_logits =
            b.op(ir::kCrossEntropyBackward, {d_z, d_t, logits, m, targets}, {part_of(b.routine(), op.out[0])})[0];
        return {d_logits, m, ce[0], ce[1]};
    };
    return r;
}

OpRule qkv_rope() {
    // x's dims but the last, then the weight's but the last.
    const auto rows = [](const Routine& r, const Op& op) {
        std::vector<DimId> dims = dims_of(r, op.in[0]);
        dims.pop_back();
        const std::vector<DimId>& w = dims_of(r, op.in[1]);
        dims.insert(dims.end(), w.begin(), w.end() - 1);
        return dims;
    };
    OpRule r;
    r.name = ir::kQkvRope;
    r.operands = 3, r.results = 3;
    r.check = [rows](const Routine& rt, const Op& op) -> std::string {
        const std::vector<DimId>&x = dims_of(rt, op.in[0]), &w = dims_of(rt, op.in[1]);
        if (x.empty() || w.empty() || w.back() != x.back()) return "x and the weight share their last dim";
        return check_qkv(rt, rows(rt, op), op.out);
    };
    r.attrs = rope_rules()[0].attrs;
    r.sharding = {.unsplit = qkv_dims, .takes_qkv_apart = true};
    r.kept = {.operands = {0, 1}, .of_product = true};
    r.flops = [](const mesh::Mesh& mesh, const Routine& rt, const Op& op) {
        const ir::Tensor& x = rt.tensors[op.in[0]];
        const double tokens = static_cast<double>(ir::local_elements(mesh, rt, x)) /
                              static_cast<double>(ir::local_size(mesh, rt, x, static_cast<int>(x.dims.size()) - 1));
        const double product = 2 * tokens * static_cast<double>(ir::local_elements(mesh, rt, rt.tensors[op.in[1]]));
        return Flops{product, product};
    };
    r.expand = [rows](Builder& b, const Op& op) {
        const TensorId qkv = b.einsum("qkv", rows(b.routine(), op), {op.in[0], op.in[1]});
        std::vector<Result> parts;
        for (const TensorId t : op.out) parts.push_back({b.tensor(t).name + ".part", b.dims(t), b.tensor(t).dtype});
        return b.op(ir::kSplitQkv, {qkv, op.in[2]}, parts, op.attrs);
    };
    return r;
}

}  // namespace

std::vector<OpRule> fused_rules() {
    std::vector<OpRule> out = {add_rmsnorm(), addmm(), linear(), linear_gelu(), matmul_dgelu(), cross_entropy_gradient(),
                               qkv_rope()};
    for (const OpRule& r : norm_rules()) {
        if (!r.with_term.empty()) out.push_back(backward_add(r));
    }
    return out;
}

}  // namespace lockstep::ops
