#include "passes/orthogonal_update.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "ops/builder.h"
#include "passes/collective_op.h"

namespace lockstep::passes {
namespace {

using ir::AxisList;
using ir::Op;
using ir::Placement;
using ir::TensorId;

constexpr const char* kWhole = "a matrix is orthogonalized as a whole";

class Update {
public:
    Update(ir::Routine& r, const ir::Program& program, const UpdateRule& rule) : r_(r), program_(program), rule_(rule) {}

    TensorId of_segment(const ir::Unit& unit, size_t index, const MomentumOf& of) {
        const ir::Segment& segment = unit.segments[index];
        flat_ = {static_cast<int>(index)};
        type_ = r_.tensors[of.gradient].dtype;
        const auto name = [&](const char* what) { return fmt::format("{}{}", what, index); };
        const Placement split{{unit.optimizer}, {}, ir::Reduce::Sum}, whole{{{}}, {}, ir::Reduce::Sum};
        Op momentum;
        momentum.kind = "muon_momentum";
        momentum.in = {of.gradient, of.buffer, of.control};
        TensorId u = temporary(name("momentum"), flat_, type_, split);
        momentum.out = {u, of.buffer};
        for (const char* key : {"momentum", "nesterov"}) momentum.attrs[key] = rule_.attrs.at(key);
        r_.ops.push_back(std::move(momentum));
        if (!unit.optimizer.empty()) {
            const Dtype sent =
                unit.reduce == Dtype::F16 ? type_ : unit.reduce;  // which would lose what is small, and has no scale
            const bool narrow = sent != type_;
            if (narrow) u = emit(ir::kCast, u, temporary(name("sent"), flat_, sent, split));
            u = along("all_gather", u, 0, unit.optimizer, kWhole);
            if (narrow) u = emit(ir::kCast, u, temporary(name("gathered"), flat_, type_, whole));
        }
        TensorId o = packed(segment, name("orthogonal"), whole, unpacked(segment, u));
        if (!unit.optimizer.empty()) o = along(ir::kSlice, o, 0, unit.optimizer, "the optimizer's shard of the update");
        return o;
    }

private:
    TensorId temporary(const std::string& name, std::vector<ir::DimId> dims, Dtype type, Placement at) {
        const TensorId t = ops::Builder(r_).make({name, std::move(dims), type});
        r_.tensors[t].placement = std::move(at);
        return t;
    }
    TensorId emit(std::string_view kind, TensorId in, TensorId out, ir::Attrs attrs = {}) {
        Op op;
        op.kind = kind;
        op.in = {in};
        op.out = {out};
        op.attrs = std::move(attrs);
        r_.ops.push_back(std::move(op));
        return out;
    }
    ir::DimId add_dim(const std::string& name, int64_t size) {
        r_.dims.push_back({name, size, size});
        return static_cast<ir::DimId>(r_.dims.size()) - 1;
    }

    // Gathers, or slices, a tensor along one of its dims.
    TensorId along(std::string_view kind, TensorId x, size_t dim, const AxisList& group, const char* note) {
        ir::Tensor t = r_.tensors[x];
        const bool gathers = kind != ir::kSlice;
        AxisList& axes = t.placement.dims[dim];
        if (gathers) axes.resize(axes.size() - group.size());
        else axes = mesh::join(axes, group);
        const TensorId out = temporary(t.name + (gathers ? ".whole" : ".part"), t.dims, t.dtype, t.placement);
        r_.ops.push_back(collective(kind, {x}, {out}, group, note, static_cast<int64_t>(dim)));
        return out;
    }

    static std::vector<int64_t> begins(const ir::Segment& segment) {
        std::vector<int64_t> out;
        for (const ir::Member& m : segment.members) out.push_back(m.begin);
        return out;
    }

    // A rank's parts of the segment's matrices, in their own dims.
    std::vector<TensorId> unpacked(const ir::Segment& segment, TensorId flat) {
        Op op;
        op.kind = ir::kUnpack;
        op.in = {flat};
        for (const ir::Member& m : segment.members) {
            const ir::Parameter& param = *program_.param(m.param);
            std::vector<ir::DimId> dims;
            for (const ir::Dim& d : param.dims) dims.push_back(add_dim(m.param + "." + d.name, d.size));
            op.out.push_back(temporary(m.param, dims, type_, param.placement));
        }
        op.attrs["begins"] = begins(segment);
        r_.ops.push_back(op);
        return op.out;
    }

    TensorId packed(const ir::Segment& segment, const std::string& name, const Placement& at,
                    const std::vector<TensorId>& parts) {
        Op op;
        op.kind = ir::kPack;
        for (size_t k = 0; k < parts.size(); ++k)
            op.in.push_back(orthogonal(*program_.param(segment.members[k].param), parts[k]));
        op.out = {temporary(name, flat_, type_, at)};
        op.attrs["begins"] = begins(segment);
        r_.ops.push_back(op);
        return op.out[0];
    }

    // x, a rank's part of the parameter's momentum: whole over tensor-parallel ranks, orthogonalized, and its part again.
    TensorId orthogonal(const ir::Parameter& param, TensorId x) {
        const std::vector<AxisList>& split = param.placement.dims;
        for (size_t d = 0; d < split.size(); ++d) {
            if (!split[d].empty()) x = along("all_gather", x, d, split[d], kWhole);
        }
        int64_t rows = 1, columns = 1;
        for (size_t d = 0; d < split.size(); ++d) (d < *ir::rows_of_matrix(param) ? rows : columns) *= param.dims[d].size;
        const std::vector<ir::DimId> matrix = {add_dim(param.key + ".rows", rows), add_dim(param.key + ".columns", columns)};
        const Placement whole{{{}, {}}, {}, ir::Reduce::Sum};
        const ir::Tensor shape = r_.tensors[x];
        x = emit("reshape", x, temporary(param.key + ".matrix", matrix, type_, whole));
        x = emit("orthogonalize", x, temporary(param.key + ".orthogonal", matrix, type_, whole),
                 {{"ns_steps", rule_.attrs.at("ns_steps")},
                  {"scale", scale(static_cast<double>(rows), static_cast<double>(columns))},
                  {"recomputed", int64_t{1}}});  // no part of the model's FLOPs
        x = emit("reshape", x, temporary(param.key + ".update", shape.dims, type_, shape.placement));
        for (size_t d = 0; d < split.size(); ++d) {
            if (!split[d].empty()) x = along(ir::kSlice, x, d, split[d], "a rank's part again");
        }
        return x;
    }

    // Of the learning rate: optimizer.muon_adjust_lr_fn.
    double scale(double rows, double columns) const {
        const bool match = std::get<int64_t>(rule_.attrs.at("match_rms_adamw")) != 0;
        return match ? 0.2 * std::sqrt(std::max(rows, columns)) : std::sqrt(std::max(1.0, rows / columns));
    }

    ir::Routine& r_;
    const ir::Program& program_;
    const UpdateRule& rule_;
    std::vector<ir::DimId> flat_;
    Dtype type_ = Dtype::F32;
};

}  // namespace

TensorId orthogonal_update(ir::Routine& update, const ir::Program& program, const ir::Unit& unit, const UpdateRule& rule,
                           size_t segment, const MomentumOf& of) {
    return Update(update, program, rule).of_segment(unit, segment, of);
}

}  // namespace lockstep::passes
