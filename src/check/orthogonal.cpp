#include "check/orthogonal.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "ops/builder.h"

namespace lockstep::check {
namespace {

using ir::Op;
using ir::Routine;
using ir::TensorId;

// The iteration on a matrix of these dims, in a routine of its own, whose tensor 0 is the matrix.
Routine iteration(const std::vector<ir::Dim>& dims, Dtype dtype, int64_t steps, double scale, TensorId& result) {
    Routine r;
    r.dims = dims;
    ir::Tensor matrix;
    matrix.name = "x", matrix.dtype = dtype, matrix.dims = {0, 1};
    r.tensors.push_back(matrix);
    ops::Builder b(r);
    Op op;
    op.kind = "orthogonalize", op.in = {0}, op.attrs = {{"ns_steps", steps}, {"scale", scale}};
    result = ops::rule(op.kind).expand(b, op).at(0);
    return r;
}

ir::Attrs of_meaning(ir::Attrs attrs) {
    for (const char* other : {"in_place", "recomputed"}) attrs.erase(other);
    return attrs;
}

std::vector<int64_t> sizes_of(const Routine& r, TensorId t) {
    std::vector<int64_t> sizes;
    for (const ir::DimId d : r.tensors[static_cast<size_t>(t)].dims) sizes.push_back(r.dims[static_cast<size_t>(d)].size);
    return sizes;
}

}  // namespace

Orthogonalized orthogonalized(const Routine& r, size_t first) {
    Orthogonalized out;
    const TensorId matrix = r.ops[first].in[0];
    const ir::Tensor& x = r.tensors[static_cast<size_t>(matrix)];
    if (x.dims.size() != 2) return {fmt::format("{} is no matrix", x.name)};
    const std::vector<ir::Dim> dims = {r.dims[static_cast<size_t>(x.dims[0])], r.dims[static_cast<size_t>(x.dims[1])]};
    // How many steps there are follows from how many ops there are.
    const auto is_last = [](const Op& op) { return op.kind == "reshape"; };
    const auto end = std::find_if(r.ops.begin() + static_cast<long>(first), r.ops.end(), is_last);
    out.ops = static_cast<size_t>(end - r.ops.begin()) - first;
    const size_t none = iteration(dims, x.dtype, 0, 1, out.result).ops.size(),
                 one = iteration(dims, x.dtype, 1, 1, out.result).ops.size();
    if (out.ops <= none || (out.ops - none) % (one - none) != 0) return {fmt::format("{} ops are no number of steps", out.ops)};
    out.steps = static_cast<int64_t>((out.ops - none) / (one - none));
    const Op& last = r.ops[first + out.ops - 1];
    const auto c = last.attrs.find("c");
    const double scale = c != last.attrs.end() ? std::get<double>(c->second) : 0;
    const auto rows = static_cast<double>(dims[0].size), columns = static_cast<double>(dims[1].size);
    out.matches_rms = scale == 0.2 * std::sqrt(std::max(rows, columns));
    if (!out.matches_rms && scale != std::sqrt(std::max(1.0, rows / columns)))
        return {fmt::format("{} is no factor of a matrix of {} x {}", scale, rows, columns)};
    TensorId result = -1;
    const Routine expected = iteration(dims, x.dtype, out.steps, scale, result);
    std::vector<TensorId> found(expected.tensors.size(), -1);  // by tensor of `expected`
    found[0] = matrix;
    for (size_t i = 0; i < out.ops; ++i) {
        const Op &is = r.ops[first + i], &should = expected.ops[i];
        bool agrees = is.kind == should.kind && of_meaning(is.attrs) == of_meaning(should.attrs) &&
                      is.in.size() == should.in.size() && is.out.size() == 1 && is.accumulate.empty() &&
                      sizes_of(r, is.out[0]) == sizes_of(expected, should.out[0]);
        for (size_t k = 0; agrees && k < is.in.size(); ++k) agrees = is.in[k] == found[static_cast<size_t>(should.in[k])];
        if (!agrees) return {fmt::format("op {} of {} is not as Newton and Schulz's iteration has it", i, out.ops)};
        found[static_cast<size_t>(should.out[0])] = is.out[0];
    }
    out.result = found[static_cast<size_t>(result)];
    return out;
}

}  // namespace lockstep::check
