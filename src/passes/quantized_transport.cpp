#include "passes/quantized_transport.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/quantized.h"
#include "ops/builder.h"
#include "passes/collective_op.h"
#include "passes/flat_ops.h"

namespace lockstep::passes {
namespace {

using ir::AxisList;
using ir::Routine;
using ir::TensorId;
using ops::Builder;

// The dim of that name, made with this size if it is new.
ir::DimId dim_called(Routine& r, const std::string& name, int64_t size, ir::DimRole role) {
    if (const ir::DimId known = r.dim(name); known >= 0) return known;
    r.dims.push_back({name, size, size, role});
    return static_cast<ir::DimId>(r.dims.size()) - 1;
}
// Of the bytes of a flat segment.
ir::DimId bytes_dim(Routine& r, ir::DimId of, int64_t bits) {
    const std::string name = fmt::format("{}.q{}", r.dims[of].name, bits);
    const int64_t bytes = quantized_bytes(r.dims[of].size, bits);
    return dim_called(r, name, bytes, ir::DimRole::Flat);
}

TensorId bytes(Routine& r, const std::string& name, std::vector<ir::DimId> dims, std::vector<AxisList> placed) {
    const TensorId t = Builder(r).make({name, std::move(dims), Dtype::I8});
    r.tensors[t].placement = {std::move(placed), {}, ir::Reduce::Sum};
    return t;
}

ir::Op between(std::string_view kind, TensorId from, TensorId to, int64_t bits) {
    ir::Op op;
    op.kind = kind, op.in = {from}, op.out = {to};
    op.attrs["bits"] = bits;
    return op;
}
ir::Op quantize(TensorId from, TensorId to, int64_t bits, Dtype type) {
    ir::Op op = between(ir::kQuantize, from, to, bits);
    op.attrs["least"] = static_cast<int64_t>(least_exponent(type));
    op.note = bits == 8   ? "what crosses ranks is int8"
              : bits == 4 ? "what crosses ranks is int4, two in a byte"
                          : "norms and biases cross ranks as they are";
    return op;
}

// Of an element of a segment's gradients on their way: norms and biases go as they are, in the same launch.
int64_t bits_of(const ir::Unit& unit, size_t segment, Dtype type) {
    return unit.segments[segment].decay ? unit.quantized_gradients : 8 * bytes_of(type);
}

}  // namespace

void gather_quantized(Routine& r, const ir::Unit& unit, const std::vector<TensorId>& from, const std::vector<TensorId>& to,
                      const AxisList& over) {
    const int64_t bits = unit.quantized_weights;
    std::vector<TensorId> sent, received, plain, whole;
    for (size_t i = 0; i < from.size(); ++i) {
        if (!unit.segments[i].decay) {
            plain.push_back(from[i]), whole.push_back(to[i]);
            continue;
        }
        const ir::DimId dim = bytes_dim(r, r.tensors[from[i]].dims[0], bits);
        sent.push_back(bytes(r, fmt::format("quantized{}", i), {dim}, r.tensors[from[i]].placement.dims));
        received.push_back(over.empty() ? sent.back()
                                        : bytes(r, fmt::format("received{}", i), {dim}, r.tensors[to[i]].placement.dims));
        r.ops.push_back(quantize(from[i], sent.back(), bits, unit.compute));
    }
    if (!over.empty() && !sent.empty())
        r.ops.push_back(collective("all_gather", sent, received, over, "integers with a scale for each block"));
    for (size_t i = 0, k = 0; i < from.size(); ++i) {
        if (unit.segments[i].decay) r.ops.push_back(between("dequantize", received[k++], to[i], bits));
    }
    if (!plain.empty() && !over.empty())
        r.ops.push_back(collective("all_gather", plain, whole, over, "norms and biases are not quantized"));
    for (size_t i = 0; over.empty() && i < plain.size(); ++i) {
        ir::Op op;
        op.kind = ir::kRename, op.in = {plain[i]}, op.out = {whole[i]};
        r.ops.push_back(std::move(op));
    }
}

void reduce_quantized(Routine& r, const ir::Program& program, const ir::Unit& unit, bool at_random,
                      const std::vector<TensorId>& from, const std::vector<TensorId>& to, const AxisList& group) {
    const mesh::Mesh& mesh = program.mesh;
    const bool draws =
        at_random && std::any_of(unit.segments.begin(), unit.segments.end(), [](const ir::Segment& s) { return s.decay; });
    const TensorId steps = draws ? Builder(r).port(program, program.state(ir::StateRole::Steps), ir::Access::Read) : -1;
    std::vector<TensorId> now = from;
    for (size_t hop = 0; hop < group.size(); ++hop) {
        const AxisList over = {group[hop]};
        const ir::DimId ranks = dim_called(r, fmt::format("ranks.{}", hop), mesh.size(over), ir::DimRole::Other);
        std::vector<TensorId> sent, received;
        for (size_t i = 0; i < from.size(); ++i) {
            const AxisList before = r.tensors[now[i]].placement.dims[0], after = mesh::join(before, over);
            const int64_t bits = bits_of(unit, i, r.tensors[now[i]].dtype);
            const ir::DimId dim = bytes_dim(r, r.tensors[now[i]].dims[0], bits);
            sent.push_back(bytes(r, fmt::format("quantized{}.{}", i, hop), {ranks, dim}, {over, before}));
            received.push_back(bytes(r, fmt::format("received{}.{}", i, hop), {ranks, dim}, {{}, after}));
            r.ops.push_back(quantize(now[i], sent.back(), bits, r.tensors[now[i]].dtype));
            if (draws && is_quantized(bits)) {
                const std::string place = fmt::format("{}.{}.{}", r.name, i, hop);
                r.ops.back().in.push_back(steps);
                r.ops.back().attrs["stream"] = static_cast<int64_t>(hash_name(place) >> 1);
            }
            if (hop + 1 == group.size()) {
                now[i] = to[i];
            } else {
                now[i] = like(r, now[i], fmt::format("sum{}.{}", i, hop));
                r.tensors[now[i]].placement.dims = {after};
            }
        }
        ir::Op exchange;
        exchange.kind = "all_to_all", exchange.in = sent, exchange.out = received, exchange.group = over;
        exchange.attrs = {{"from", int64_t{0}}, {"to", int64_t{1}}};
        exchange.note = "each rank receives the parts of its shard";
        r.ops.push_back(std::move(exchange));
        for (size_t i = 0; i < from.size(); ++i)
            r.ops.push_back(between("dequantize_sum", received[i], now[i], bits_of(unit, i, r.tensors[now[i]].dtype)));
    }
}

ir::AxisList replicas_of(const mesh::Mesh& mesh, const ir::Unit& unit, const ir::Segment& segment) {
    AxisList out = mesh::subtract(segment.grad_partial, mesh::unite(unit.optimizer, mesh.whole(mesh::Axis::tp)));
    std::reverse(out.begin(), out.end());
    return out;
}

void all_reduce_quantized(Routine& r, const ir::Program& program, const ir::Unit& unit, bool at_random,
                          const std::vector<TensorId>& from, const std::vector<TensorId>& to, const AxisList& scattered,
                          const AxisList& shared) {
    const AxisList group = mesh::join(scattered, shared);
    if (shared.empty()) return reduce_quantized(r, program, unit, at_random, from, to, group);
    const auto parts = shards_like(r, to, "part", mesh::join(r.tensors[from[0]].placement.dims[0], group));
    reduce_quantized(r, program, unit, at_random, from, parts, group);
    ir::Unit as = unit;
    as.quantized_weights = kSharedBits, as.compute = r.tensors[to[0]].dtype;
    gather_quantized(r, as, parts, to, shared);
}

}  // namespace lockstep::passes
