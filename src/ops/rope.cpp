#include "ops/rope.h"

#include <cmath>
#include <numbers>

#include "base/error.h"
#include "ops/shapes.h"

namespace lockstep::ops {

std::vector<double> rope_frequencies(const ir::Op& op, int64_t head_dim) {
    const double theta = op.number("theta"), factor = op.number("factor"), low = op.number("low_freq_factor"),
                 high = op.number("high_freq_factor"), original = op.number("original_positions");
    std::vector<double> out;
    for (int64_t i = 0; i < head_dim / 2; ++i) {
        double f = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
        if (factor != 1) {  // Llama 3.1: long waves are stretched by `factor`, a ramp between the two borders
            const double turns = original * f / (2 * std::numbers::pi);  // over the original context
            const double smooth = std::clamp((turns - low) / (high - low), 0.0, 1.0);
            f = (1 - smooth) * f / factor + smooth * f;
        }
        out.push_back(f);
    }
    return out;
}

namespace {

const std::vector<Attribute>& waves() {
    static const std::vector<Attribute> all = {{"sign", AttrType::Integer},
                                               {"theta", AttrType::Number},
                                               {"factor", AttrType::Number},
                                               {"low_freq_factor", AttrType::Number},
                                               {"high_freq_factor", AttrType::Number},
                                               {"original_positions", AttrType::Number}};
    return all;
}

ir::Attrs rotated_back(const Op& op) {
    ir::Attrs attrs = op.attrs;
    if (attrs.contains("sign")) attrs["sign"] = -op.integer("sign");
    return attrs;
}

// rope(x [batch, seq, ..., head_dim], pos [batch, seq]) {sign, theta, ...}: halves are rotated against each other, the layout
// of Hugging Face's checkpoints. Its derivative is the rotation back. Of rows [.., qkv, kv_heads, head_dim] it rotates queries
// and keys and leaves the values: in place these are not even read.
OpRule rope() {
    OpRule r;
    r.name = ir::kRope;
    r.operands = 2, r.results = 1;
    r.attrs = waves();
    r.check = [](const Routine& rt, const Op& op) { return same_dims(rt, op.in[0], op.out[0]); };
    r.derivative = [](Builder& b, const Op& op, std::span<const TensorId> dy) {
        return std::vector<TensorId>{b.op(ir::kRope, {dy[0], op.in[1]}, {part_of(b.routine(), op.in[0])}, rotated_back(op))[0],
                                     -1};
    };
    const auto unsplit = [](const Routine& rt, const Op& op) {
        return is_packed_qkv(rt, op.in[0]) ? qkv_dims(rt, op) : std::vector<DimId>{rt.dim(DimRole::HeadDim)};
    };
    r.sharding = {.unsplit = unsplit, .linear = {0}, .takes_qkv_apart = true};
    r.memory = {.in_place = 0};
    return r;
}

// Of split_qkv and join_qkv. Positions, the operand behind `tensors` others, are there exactly where queries and keys are
// rotated.
std::string check_rotation(const Op& op, const Routine& rt, size_t tensors) {
    const bool rotates = op.in.size() == tensors + 1;
    if (!rotates && op.in.size() != tensors) return fmt::format("takes {} operands, and positions where it rotates", tensors);
    for (const Attribute& a : waves()) {
        if (op.attrs.contains(std::string(a.name)) == rotates) continue;
        return rotates ? fmt::format("needs the attribute {}", a.name) : fmt::format("has no attribute {}", a.name);
    }
    return !rotates || rt.tensors[op.in.back()].dtype == Dtype::I32 ? "" : "the last operand holds positions, int32";
}

OpRule of_qkv(std::string_view name, int results) {
    OpRule r;
    r.name = name;
    r.results = results;
    r.attrs = waves();
    for (Attribute& a : r.attrs) a.optional = true;
    r.sharding = {.unsplit = qkv_dims, .takes_qkv_apart = true};
    return r;
}

// split_qkv(qkv [.., qkv, kv_heads, head_dim][, pos]) {[sign, theta, ...]} -> q [.., kv_heads, group, head_dim], k and v
// [.., kv_heads, head_dim]: each token's row holds its queries, its keys, then its values. With positions queries and keys are
// rotated, as rope does it.
OpRule split_qkv() {
    OpRule r = of_qkv(ir::kSplitQkv, 3);
    r.check = [](const Routine& rt, const Op& op) {
        if (op.in.empty()) return std::string("takes 1 operands, and positions where it rotates");
        return first_of({check_rotation(op, rt, 1), check_qkv(rt, dims_of(rt, op.in[0]), op.out)});
    };
    r.derivative = [](Builder& b, const Op& op, std::span<const TensorId> d_out) {
        std::vector<TensorId> in(d_out.begin(), d_out.end()), out(op.in.size(), -1);
        for (const TensorId d : in) ensure(d >= 0, "split_qkv: a result has no cotangent");
        if (op.in.size() == 2) in.push_back(op.in[1]);
        out[0] = b.op("join_qkv", in, {part_of(b.routine(), op.in[0])}, rotated_back(op))[0];
        return out;
    };
    r.sharding.linear = {0};
    return r;
}

// join_qkv(q, k, v[, pos]) {[sign, theta, ...]} -> qkv: the inverse.
OpRule join_qkv() {
    OpRule r = of_qkv("join_qkv", 1);
    r.check = [](const Routine& rt, const Op& op) {
        const std::string wrong = check_rotation(op, rt, 3);
        return wrong.empty() ? check_qkv(rt, dims_of(rt, op.out[0]), std::span(op.in).first(3)) : wrong;
    };
    r.derivative = [](Builder& b, const Op& op, std::span<const TensorId> dy) {
        std::vector<TensorId> in = {dy[0]};
        std::vector<Result> parts;
        for (int i = 0; i < 3; ++i) parts.push_back(part_of(b.routine(), op.in[static_cast<size_t>(i)]));
        if (op.in.size() == 4) in.push_back(op.in[3]);
        std::vector<TensorId> out = b.op(ir::kSplitQkv, in, parts, rotated_back(op));
        out.resize(op.in.size(), -1);
        return out;
    };
    return r;
}

}  // namespace

std::vector<DimId> qkv_dims(const Routine& rt, const Op&) {
    return {rt.dim(DimRole::Qkv), rt.dim(DimRole::Group), rt.dim(DimRole::HeadDim)};
}

std::string check_qkv(const Routine& rt, std::span<const DimId> qkv, std::span<const TensorId> parts) {
    const std::vector<DimId>&q = dims_of(rt, parts[0]), &k = dims_of(rt, parts[1]);
    const size_t n = qkv.size();
    bool agree = n >= 3 && q.size() == n && k.size() == n - 1 && dims_of(rt, parts[2]) == k;
    for (size_t i = 0; agree && i + 3 < n; ++i) agree = q[i] == qkv[i] && k[i] == qkv[i];
    const auto heads = static_cast<long>(n) - 3;
    agree = agree && rt.dims[qkv[n - 3]].role == DimRole::Qkv && rt.dims[qkv[n - 3]].size == rt.dims[q[n - 2]].size + 2 &&
            std::equal(qkv.begin() + heads + 1, qkv.end(), k.begin() + heads) && q[n - 3] == qkv[n - 2] && q[n - 1] == qkv[n - 1];
    return agree ? ""
                 : fmt::format("{}, {} and {} are not the queries, keys and values of rows [qkv = group + 2, kv_heads, head_dim]",
                               rt.tensors[parts[0]].name, rt.tensors[parts[1]].name, rt.tensors[parts[2]].name);
}

bool is_packed_qkv(const Routine& rt, TensorId t) {
    const std::vector<DimId>& dims = dims_of(rt, t);
    return dims.size() >= 3 && rt.dims[dims[dims.size() - 3]].role == DimRole::Qkv;
}

int64_t untouched_bytes(const mesh::Mesh& mesh, const Routine& rt, const Op& op) {
    if (op.kind != ir::kRope || !is_packed_qkv(rt, op.in[0])) return 0;
    const ir::Tensor& row = rt.tensors[op.in[0]];
    return 2 * ir::local_bytes(mesh, rt, row) / ir::local_size(mesh, rt, row, static_cast<int>(row.dims.size()) - 3);
}

std::vector<OpRule> rope_rules() { return {rope(), split_qkv(), join_qkv()}; }

}  // namespace lockstep::ops
