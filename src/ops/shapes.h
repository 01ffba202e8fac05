// Helpers of the op families: the words in which shape rules are written.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "ops/builder.h"

namespace lockstep::ops {

using ir::DimRole;

inline const std::vector<DimId>& dims_of(const Routine& r, TensorId t) { return r.tensors[t].dims; }

inline std::string has(const Op& op, std::initializer_list<std::string_view> keys) {
    for (std::string_view k : keys) {
        if (!op.attrs.contains(std::string(k))) return fmt::format("needs the attribute {}", k);
    }
    return "";
}

// For Sharding::unsplit: the routine's dims of these roles, and the dim that the attribute `over` names.
inline std::function<std::vector<DimId>(const Routine&, const Op&)> with_roles(std::vector<ir::DimRole> roles) {
    return [roles = std::move(roles)](const Routine& r, const Op&) {
        std::vector<DimId> out;
        for (ir::DimRole role : roles) out.push_back(r.dim(role));
        return out;
    };
}
inline std::vector<DimId> named_by_over(const Routine& r, const Op& op) { return {r.dim(op.text("over"))}; }

inline std::string same_dims(const Routine& r, TensorId a, TensorId b) {
    if (dims_of(r, a) == dims_of(r, b)) return "";
    return fmt::format("{} and {} must have the same dims", r.tensors[a].name, r.tensors[b].name);
}

inline std::string floats(const Routine& r, const Op& op) {
    for (TensorId t : op.out) {
        if (r.tensors[t].dtype == Dtype::I32) return fmt::format("{} cannot be an integer", r.tensors[t].name);
    }
    return "";
}

// The first message that is not empty.
inline std::string first_of(std::initializer_list<std::string> messages) {
    for (const std::string& m : messages) {
        if (!m.empty()) return m;
    }
    return "";
}

// Of a function that unary knows and that has a slope (elementwise.cpp).
std::string has_slope(const std::string& fn);

// One result named d.<operand>.part, shaped like the operand.
inline Result part_of(const Routine& r, TensorId t) {
    return {"d." + r.tensors[t].name + ".part", r.tensors[t].dims, r.tensors[t].dtype};
}

// Makes "<name>_backward" out of a composite: operands are the cotangents of `differentiable_out`, the operands, then the
// results named in `saved_out`; results are the cotangents of `differentiable_in`. Its expansion is derived, not written:
// the composite's own expansion is run again as far as it is not saved, and differentiated.
struct CompositeBackward {
    std::string_view name;  // of the backward kind
    std::vector<int> differentiable_out, differentiable_in, saved_out;
    bool may_run_again = false;  // its further results, if it has any, are those of the forward
};
OpRule backward_rule(const OpRule& forward, const CompositeBackward& spec);
// The derivative of the composite: one op of the backward kind.
std::function<std::vector<TensorId>(Builder&, const Op&, std::span<const TensorId>)> composite_derivative(
    const CompositeBackward& spec);

}  // namespace lockstep::ops
