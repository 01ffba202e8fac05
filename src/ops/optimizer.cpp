// The end of a step, on flat segments: norm, clipping and commit, AdamW. State ops: no derivative, no sharding rule (the
// partitioning pass places them).
//   sum_squares(g) -> norm2 [] f64 {count_if}: adds on ranks whose coordinate is 0 on every sub-axis listed in count_if.
//   owned(x []) -> [] f64 {count_if}: x on those ranks, else 0. Without an operand 0: other ranks have it.
//   step_control(stats.., inv_n, steps, lr) -> see step_control below.
//   adamw(w, g, m, v, control) -> w, m, v {beta1, beta2, eps, weight_decay}: decoupled decay (Loshchilov & Hutter, 1711.05101).
//   zero_padding(x) -> x {ranges}: clears [begin, end) pairs of a flat buffer.
#include "ops/shapes.h"

namespace lockstep::ops {
namespace {

OpRule simple(std::string_view name, int in, int out, std::vector<Attribute> attrs) {
    OpRule r;
    r.name = name;
    r.operands = in, r.results = out;
    r.attrs = std::move(attrs);
    r.check = [](const Routine&, const Op&) { return std::string(); };
    return r;
}
std::vector<Attribute> numbers(std::initializer_list<std::string_view> names) {
    std::vector<Attribute> out;
    for (std::string_view name : names) out.push_back({name, AttrType::Number});
    return out;
}

}  // namespace

std::vector<OpRule> optimizer_rules() {
    OpRule adamw = simple("adamw", 5, 3, numbers({"beta1", "beta2", "eps", "weight_decay"}));
    adamw.flops = [](const mesh::Mesh& m, const Routine& r, const Op& op) {
        return Flops{0, 12.0 * static_cast<double>(ir::local_elements(m, r, r.tensors[op.in[0]]))};
    };
    OpRule squares = simple("sum_squares", 1, 1, {{"count_if", AttrType::Integers}});
    squares.wide = true;
    squares.flops = [](const mesh::Mesh& m, const Routine& r, const Op& op) {
        return Flops{0, 2.0 * static_cast<double>(ir::local_elements(m, r, r.tensors[op.in[0]]))};
    };
    // step_control(norm2, loss_sum, inv_n, steps, lr) -> control [7] = {lr, clip coefficient, commit, bias corrections 1 and 2,
    // grad norm, loss}, steps; commit is 1 where norm and loss are finite.
    return {adamw,
            squares,
            simple("owned", -1, 1, {{"count_if", AttrType::Integers}}),
            simple("step_control", 5, 2, numbers({"max_norm", "beta1", "beta2"})),
            simple("zero_padding", 1, 1, {{"ranges", AttrType::Integers}}),
            simple("inverse_count", 1, 1, {}),
            simple("copy", 1, 1, {})};
}

}  // namespace lockstep::ops
