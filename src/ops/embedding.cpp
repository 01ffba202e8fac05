// Table look-ups along vocab, whose shard a rank derives from its coordinate: gather and its transpose scatter (the
// embedding), pick and its transpose unpick (the target's logit). An id outside the rank's shard gives zero.
#include "ops/shapes.h"

namespace lockstep::ops {
namespace {

using Span = std::span<const TensorId>;

// Operand 1 holds ids; `rows` has a row of `table`, which begins with vocab, for each of them.
std::string rows_of_table(const Routine& rt, const Op& op, TensorId table, TensorId rows) {
    if (rt.tensors[op.in[1]].dtype != Dtype::I32) return "operand 1 holds ids, int32";
    const std::vector<DimId>& of_table = dims_of(rt, table);
    std::vector<DimId> dims = dims_of(rt, op.in[1]);
    if (!of_table.empty()) dims.insert(dims.end(), of_table.begin() + 1, of_table.end());
    if (!of_table.empty() && dims_of(rt, rows) == dims) return "";
    return fmt::format("{} has the dims of the ids and those of {} after its first", rt.tensors[rows].name,
                       rt.tensors[table].name);
}

// Operand 1 holds ids; `picked` has an element for each of them, `from` a row, which ends with vocab.
std::string element_of_row(const Routine& rt, const Op& op, TensorId from, TensorId picked) {
    const TensorId ids = op.in[1];
    if (rt.tensors[ids].dtype != Dtype::I32) return "operand 1 holds ids, int32";
    std::vector<DimId> dims = dims_of(rt, from);
    if (!dims.empty()) dims.pop_back();
    const bool is_row = !dims_of(rt, from).empty() && dims == dims_of(rt, ids);
    return is_row ? same_dims(rt, picked, ids) : fmt::format("{} has the dims of the ids and one more", rt.tensors[from].name);
}

// gather(table [vocab, hidden], ids [...]) -> [..., hidden]
OpRule gather() {
    OpRule r;
    r.name = "gather";
    r.operands = 2, r.results = 1;
    r.check = [](const Routine& rt, const Op& op) { return rows_of_table(rt, op, op.in[0], op.out[0]); };
    r.derivative = [](Builder& b, const Op& op, Span dy) {
        return std::vector<TensorId>{b.op(ir::kScatter, {dy[0], op.in[1]}, {part_of(b.routine(), op.in[0])})[0], -1};
    };
    r.sharding = {.linear = {0}};
    return r;
}

// scatter(dy [..., hidden], ids [...]) -> [vocab, hidden]; sums in ascending order of position.
OpRule scatter() {
    OpRule r;
    r.name = ir::kScatter;
    r.operands = 2, r.results = 1;
    r.check = [](const Routine& rt, const Op& op) { return rows_of_table(rt, op, op.out[0], op.in[0]); };
    r.sharding = {.linear = {0}};
    r.precision = {.any_dtype = true};
    return r;
}

// pick(x [..., vocab], ids [...]) -> [...]: selects, never multiplies, since padded columns are -inf.
OpRule pick() {
    OpRule r;
    r.name = "pick";
    r.operands = 2, r.results = 1;
    r.check = [](const Routine& rt, const Op& op) { return element_of_row(rt, op, op.in[0], op.out[0]); };
    r.derivative = [](Builder& b, const Op& op, Span dy) {
        return std::vector<TensorId>{b.op("unpick", {dy[0], op.in[1]}, {part_of(b.routine(), op.in[0])})[0], -1};
    };
    r.sharding = {.linear = {0}};
    return r;
}

// unpick(dy [...], ids [...]) -> [..., vocab]
OpRule unpick() {
    OpRule r;
    r.name = "unpick";
    r.operands = 2, r.results = 1;
    r.check = [](const Routine& rt, const Op& op) { return element_of_row(rt, op, op.out[0], op.in[0]); };
    r.sharding = {.linear = {0}};
    return r;
}

}  // namespace

std::vector<OpRule> embedding_rules() { return {gather(), scatter(), pick(), unpick()}; }

}  // namespace lockstep::ops
