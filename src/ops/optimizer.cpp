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

OpRule simple(std::string_view name, int in, int out, std::vector<std::string_view> attrs) {
    OpRule r;
    r.name = name;
    r.operands = in, r.results = out;
    r.check = [attrs](const Routine&, const Op& op) -> std::string {
        for (std::string_view a : attrs) {
            if (!op.attrs.contains(std::string(a))) return fmt::format("needs the attribute {}", a);
        }
        return std::string();
    };
    return r;
}

}  // namespace

std::vector<OpRule> optimizer_rules() {
    OpRule adamw = simple("adamw", 5, 3, {"beta1", "beta2", "eps", "weight_decay"});
    adamw.flops = [](const mesh::Mesh& m, const Routine& r, const Op& op) {
        return Flops{0, 12.0 * static_cast<double>(ir::local_elements(m, r, r.tensors[op.in[0]]))};
    };
    OpRule squares = simple("sum_squares", 1, 1, {"count_if"});
    squares.wide = true;
    squares.flops = [](const mesh::Mesh& m, const Routine& r, const Op& op) {
        return Flops{0, 2.0 * static_cast<double>(ir::local_elements(m, r, r.tensors[op.in[0]]))};
    };
    // step_control(norm2, loss_sum, inv_n, steps, lr) -> control [7] = {lr, clip coefficient, commit, bias corrections 1 and 2,
    // grad norm, loss}, steps; commit is 1 where norm and loss are finite.
    return {adamw,
            squares,
            simple("owned", -1, 1, {"count_if"}),
            simple("step_control", 5, 2, {"max_norm", "beta1", "beta2"}),
            simple("zero_padding", 1, 1, {"ranges"}),
            simple("inverse_count", 1, 1, {}),
            simple("copy", 1, 1, {})};
}

}  // namespace lockstep::ops
