// dropout(x [batch, seq, ..], noise) {dropout, rng_key} (Srivastava et al. 2014). Linear in x: its derivative is itself.
// bias_dropout_add(x, b, residual[, noise]): residual + dropout(x + b), the end of each half of a GPT layer. Without dropout it
// has neither noise nor attributes. x is reduced before, where it is a partial sum: the bias is added once.
#include "ops/dropout.h"

#include "base/random.h"
#include "ops/shapes.h"

namespace lockstep::ops {

ir::Attrs dropout_attrs(double probability, std::string_view place) {
    return {{"dropout", probability}, {"rng_key", static_cast<int64_t>(hash_name(place) >> 1)}};
}

void remove_dropout(Routine& routine) {
    for (Op& op : routine.ops) {
        if (!has_dropout(op)) continue;
        op.attrs.erase("dropout");
        op.attrs.erase("rng_key");
        op.in.pop_back();
        if (op.kind == ir::kDropout) op.kind = ir::kAdd;  // of one term
    }
}

namespace {

std::string check_row_noise(const Routine& rt, const Op& op) {
    if (const std::string wrong = has(op, {"dropout", "rng_key"}); !wrong.empty()) return wrong;
    const double p = op.number("dropout");
    if (!(p > 0 && p < 1)) return "the probability lies between 0 and 1";
    const std::vector<DimId>&x = dims_of(rt, op.in[0]), &noise = dims_of(rt, op.in.back());
    const bool rows = x.size() > noise.size() && std::equal(noise.begin(), noise.end(), x.begin());
    if (!rows || rt.tensors[op.in.back()].dtype != Dtype::I32) return "the last operand is an int32 for each token";
    return same_dims(rt, op.in[0], op.out[0]);
}

OpRule dropout() {
    OpRule r;
    r.name = ir::kDropout;
    r.operands = 2, r.results = 1;
    r.attrs = {{"dropout", AttrType::Number}, {"rng_key", AttrType::Integer}};
    r.check = check_row_noise;
    r.derivative = [](Builder& b, const Op& op, std::span<const TensorId> dy) {
        return std::vector<TensorId>{b.op(ir::kDropout, {dy[0], op.in[1]}, {part_of(b.routine(), op.in[0])}, op.attrs)[0], -1};
    };
    r.sharding = {.linear = {0}};
    r.memory = {.in_place = 0};
    r.precision = {.any_dtype = true};
    return r;
}

OpRule bias_dropout_add() {
    OpRule r;
    r.name = ir::kBiasDropoutAdd;
    r.results = 1;
    r.attrs = {{"dropout", AttrType::Number, true}, {"rng_key", AttrType::Integer, true}};
    r.check = [](const Routine& rt, const Op& op) -> std::string {
        if (op.in.size() != (has_dropout(op) ? 4u : 3u)) return "takes x, a bias, the residual, and noise where it drops";
        const std::vector<DimId>&x = dims_of(rt, op.in[0]), &b = dims_of(rt, op.in[1]);
        if (x.empty() || b != std::vector<DimId>{x.back()}) return "the bias has the last dim of operand 0";
        return first_of({same_dims(rt, op.in[0], op.in[2]), has_dropout(op) ? check_row_noise(rt, op) : "",
                         same_dims(rt, op.in[0], op.out[0])});
    };
    r.derivative = [](Builder& b, const Op& op, std::span<const TensorId> dy) {
        TensorId dx = dy[0];
        if (has_dropout(op)) dx = b.op(ir::kDropout, {dy[0], op.in[3]}, {part_of(b.routine(), op.in[0])}, op.attrs)[0];
        std::vector<TensorId> out(op.in.size(), -1);
        out[0] = dx;
        out[1] = b.einsum("d." + b.tensor(op.in[1]).name + ".part", b.dims(op.in[1]), {dx});
        out[2] = dy[0];
        return out;
    };
    r.expand = [](Builder& b, const Op& op) {
        const std::string name = b.tensor(op.in[0]).name;
        TensorId t = b.op(ir::kBias, {op.in[0], op.in[1]}, {{name + ".biased", b.dims(op.in[0])}})[0];
        if (has_dropout(op)) t = b.op(ir::kDropout, {t, op.in[3]}, {{name + ".dropped", b.dims(t)}}, op.attrs)[0];
        return std::vector<TensorId>{b.add(name + ".sum", {op.in[2], t})};
    };
    r.memory = {.in_place = 0};
    r.precision = {.any_dtype = true, .wide_if_any = true};
    return r;
}

}  // namespace

std::vector<OpRule> dropout_rules() { return {dropout(), bias_dropout_add()}; }

}  // namespace lockstep::ops
