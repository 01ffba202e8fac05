#include "base/error.h"
#include "ops/shapes.h"

namespace lockstep::ops {

std::function<std::vector<TensorId>(Builder&, const Op&, std::span<const TensorId>)> composite_derivative(
    const CompositeBackward& spec) {
    return [spec](Builder& b, const Op& op, std::span<const TensorId> d_out) {
        std::vector<TensorId> in;
        for (int i : spec.differentiable_out) {
            if (d_out[i] < 0) throw InternalError(fmt::format("{}: result {} has no cotangent", spec.name, i));
            in.push_back(d_out[i]);
        }
        in.insert(in.end(), op.in.begin(), op.in.end());
        for (int i : spec.saved_out) in.push_back(op.out[i]);
        std::vector<Result> out;
        for (int i : spec.differentiable_in) out.push_back(part_of(b.routine(), op.in[i]));
        const std::vector<TensorId> made = b.op(spec.name, in, out, op.attrs);
        std::vector<TensorId> cotangents(op.in.size(), -1);
        for (size_t k = 0; k < made.size(); ++k) cotangents[spec.differentiable_in[k]] = made[k];
        return cotangents;
    };
}

OpRule backward_rule(const OpRule& forward, const CompositeBackward& spec) {
    OpRule rule;
    rule.name = spec.name;
    rule.attrs = forward.attrs;
    rule.sharding.unsplit = forward.sharding.unsplit;
    rule.check = [spec](const Routine& r, const Op& op) {
        const size_t first = spec.differentiable_out.size(), cotangents = spec.differentiable_in.size();
        for (size_t k = 0; k < std::min(op.out.size(), cotangents); ++k) {
            const std::string wrong = same_dims(r, op.out[k], op.in[first + spec.differentiable_in[k]]);
            if (!wrong.empty()) return wrong;
        }
        if (spec.may_run_again && op.out.size() == cotangents + first) {
            for (size_t k = 0; k < first; ++k) {
                const std::string wrong = same_dims(r, op.out[cotangents + k], op.in[k]);
                if (!wrong.empty()) return wrong;
            }
            return std::string();
        }
        return op.out.size() == cotangents ? "" : fmt::format("gives {} results", cotangents);
    };
    rule.flops = [](const mesh::Mesh& mesh, const Routine& r, const Op& op) {
        double elements = 0;
        for (TensorId t : op.in) elements += static_cast<double>(ir::local_elements(mesh, r, r.tensors[t]));
        return Flops{0, 2 * elements};
    };
    rule.expand = [spec, expand = forward.expand, forward_name = std::string(forward.name)](Builder& b, const Op& op) {
        const size_t n_cotangents = spec.differentiable_out.size();
        const size_t n_in = op.in.size() - n_cotangents - spec.saved_out.size();
        Op again;
        again.kind = forward_name;
        again.attrs = op.attrs;
        again.in.assign(op.in.begin() + static_cast<long>(n_cotangents), op.in.begin() + static_cast<long>(n_cotangents + n_in));
        const size_t begin = b.routine().ops.size();
        const std::vector<TensorId> results = expand(b, again);
        std::vector<Op> inner(b.routine().ops.begin() + static_cast<long>(begin), b.routine().ops.end());

        std::vector<TensorId> sources;
        for (int i : spec.differentiable_in) sources.push_back(again.in[i]);
        Derivative derivative(b, depends_on(b.routine(), inner, sources));
        for (size_t k = 0; k < n_cotangents; ++k) derivative.seed(results[spec.differentiable_out[k]], op.in[k]);
        derivative.run(inner);
        std::vector<TensorId> cotangents;
        for (TensorId s : sources) cotangents.push_back(derivative.total(s));
        if (op.out.size() > sources.size()) cotangents.insert(cotangents.end(), results.begin(), results.end());

        // What was saved is read from there; the ops that made it become dead.
        for (size_t i = begin; i < b.routine().ops.size(); ++i) {
            for (TensorId& t : b.routine().ops[i].in) {
                for (size_t k = 0; k < spec.saved_out.size(); ++k) {
                    if (t == results[spec.saved_out[k]]) t = op.in[n_cotangents + n_in + k];
                }
            }
        }
        return cotangents;
    };
    return rule;
}

}  // namespace lockstep::ops
