#include "passes/weights_amax.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/round.h"
#include "ir/sources.h"
#include "ops/builder.h"
#include "passes/collective_op.h"
#include "passes/flat_ops.h"

namespace lockstep::passes {

using ir::AxisList;
using ir::Routine;
using ir::TensorId;

namespace {

template <class Program, class F>
void for_each_weights_amax(Program& program, const F& f) {
    for (auto& r : program.routines) {
        for (auto& t : r.tensors) {
            if (t.port >= 0 && program.has_role(r.ports[t.port], ir::StateRole::WeightsAmax)) f(r, t);
        }
    }
}

}  // namespace

void place_weights_amax(ir::Program& program) {
    std::map<ir::StateId, std::map<std::string, int64_t>> places;
    for_each_weights_amax(program,
                          [&](const Routine& r, const ir::Tensor& t) { places[r.ports[t.port].state].try_emplace(t.source, 0); });
    for (auto& [state, groups] : places) {
        int64_t at = 0;
        for (auto& [group, place] : groups) place = at, at += kAlignmentBytes;
    }
    for_each_weights_amax(
        program, [&](const Routine& r, ir::Tensor& t) { t.offset_bytes = places.at(r.ports[t.port].state).at(t.source); });
}

WeightsAmax::WeightsAmax(const ir::Program& program, const ir::Unit& unit) : program_(program), unit_(unit) {
    for_each_weights_amax(program_, [&](const Routine& r, const ir::Tensor& t) {
        if (r.block != unit_.block || ranges_of(t.source).empty()) return;
        state_ = r.ports[t.port].state;
        places_[t.source] = t.offset_bytes;
    });
}

std::vector<WeightsAmax::Range> WeightsAmax::ranges_of(const std::string& group) const {
    const std::vector<std::string_view> params = ir::sources_of(group);
    std::vector<Range> out;
    for (size_t i = 0; i < unit_.segments.size(); ++i) {
        for (const ir::Member& m : unit_.segments[i].members) {
            if (std::find(params.begin(), params.end(), m.param) != params.end()) out.push_back({i, m.begin, m.begin + m.count});
        }
    }
    return out;
}

// By group, in a port of the routine.
std::map<std::string, TensorId> WeightsAmax::port(Routine& r, ir::Access access) const {
    std::map<std::string, TensorId> out;
    if (const int known = r.port_of_state(state_); known >= 0) {
        for (const TensorId t : r.port_tensors(known)) out[r.tensors[t].source] = t;
        return out;
    }
    r.ports.push_back(program_.port(state_, access));
    for (const auto& [group, offset_bytes] : places_) {
        const TensorId t = ops::Builder(r).make({fmt::format("amax{}", out.size()), {}, program_.states[state_].dtype});
        r.tensors[t].port = static_cast<int>(r.ports.size()) - 1;
        r.tensors[t].source = group, r.tensors[t].offset_bytes = offset_bytes;
        out[group] = t;
    }
    return out;
}

void WeightsAmax::find(Routine& r, const std::vector<TensorId>& weights) const {
    struct Launch {
        std::vector<TensorId> own, all;
    };
    std::map<AxisList, Launch> launches;  // by the axes over which they reduce
    const Dtype read = is_float8(unit_.compute) ? unit_.master : unit_.compute;
    for (const auto& [group, all] : port(r, ir::Access::Write)) {
        ir::Op op;
        op.kind = ir::kMemberAmax;
        std::vector<int64_t> ranges;
        AxisList over;
        for (const Range& range : ranges_of(group)) {
            const TensorId x = weights[range.segment];
            if (op.in.empty() || op.in.back() != x) op.in.push_back(x);
            ranges.insert(ranges.end(), {std::ssize(op.in) - 1, range.begin, range.end});
            over = mesh::unite(over, mesh::unite(r.tensors[x].placement.dims[0], unit_.segments[range.segment].shards));
        }
        op.attrs["ranges"] = std::move(ranges);
        if (r.tensors[weights[0]].dtype != read) op.attrs["rounded"] = std::string(name_of(read));
        op.out = {all};
        if (!over.empty()) {
            op.out = {like(r, all, "own." + r.tensors[all].name)};
            r.tensors[op.out[0]].placement = {{}, over, ir::Reduce::Max};
            launches[over].own.push_back(op.out[0]), launches[over].all.push_back(all);
        }
        r.ops.push_back(std::move(op));
    }
    for (const auto& [axes, launch] : launches)
        r.ops.push_back(collective("all_reduce", launch.own, launch.all, axes, "scales are of the weights of all ranks"));
}

void WeightsAmax::cast(Routine& r, const std::vector<TensorId>& from, const std::vector<TensorId>& to) const {
    const std::map<std::string, TensorId> amax = port(r, ir::Access::Read);
    for (size_t i = 0; i < from.size(); ++i) {
        ir::Op op;
        op.kind = ir::kMemberFloat8, op.in = {from[i]}, op.out = {to[i]};
        std::vector<std::array<int64_t, 3>> scaled;  // begin, end, by which
        for (const auto& [group, largest] : amax) {
            for (const Range& range : ranges_of(group)) {
                if (range.segment != i) continue;
                if (op.in.back() != largest) op.in.push_back(largest);
                scaled.push_back({range.begin, range.end, std::ssize(op.in) - 2});
            }
        }
        std::sort(scaled.begin(), scaled.end());
        std::vector<int64_t> ranges;
        for (const auto& [begin, end, which] : scaled) ranges.insert(ranges.end(), {which, begin, end});
        op.attrs["ranges"] = std::move(ranges);
        op.note = "weights cross ranks as codes";
        r.ops.push_back(std::move(op));
    }
}

}  // namespace lockstep::passes
