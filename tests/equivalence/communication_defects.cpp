// Defects of collectives: over which ranks, of what, in which order; and of what counts as counted once.
#include "mesh/mesh.h"
#include "tests/equivalence/defects.h"
#include "tests/equivalence/edit.h"

namespace lockstep::testing {
namespace {

using ir::AxisList;
using ir::Op;
using ir::Program;
using ir::Routine;
using ir::RoutineKind;
using ir::TensorId;

bool drop(Routine&, Op& op) {
    op.in.clear(), op.out.clear(), op.accumulate.clear();
    return true;
}

bool drop_last_axis(Routine&, Op& op) {
    if (op.group.size() < 2) return false;
    op.group.pop_back();
    return true;
}

bool reverse_group(Routine&, Op& op) {
    std::reverse(op.group.begin(), op.group.end());
    return op.group.size() > 1;
}

// Of two reductions, one after the other, each goes over the other's ranks.
bool scatter_outer_first(Program& p) {
    bool any = false;
    for (Routine& r : p.routines) {
        const bool reduces = std::find(kReductions.begin(), kReductions.end(), r.kind) != kReductions.end();
        for (size_t k = 0; reduces && k + 1 < r.ops.size(); ++k) {
            Op &first = r.ops[k], &second = r.ops[k + 1];
            const bool follow = first.kind == "reduce_scatter" && second.kind == first.kind && second.in == first.out;
            if (!follow || p.mesh.size(second.group) < p.mesh.size(first.group)) continue;  // more bytes than were planned
            std::swap(first.group, second.group);
            for (const TensorId t : first.out) r.tensors[t].placement.dims[0].back() = first.group[0];
            any = true;
        }
    }
    return any;
}

// Every rank keeps its own value where a sum was due.
bool keep_own(Routine&, Op& op) {
    if (op.in.size() != 1 || op.in == op.out) return false;
    op.kind = "copy", op.kernel = "reference.copy";
    op.group.clear();
    return true;
}

// Every rank keeps its own part of its own value where a sum was due.
bool slice_own(Program& p) {
    bool any = false;
    for (Routine& r : p.routines) {
        if (r.kind != RoutineKind::ReduceStep) continue;
        std::vector<Op> ops;
        for (const Op& op : r.ops) {
            const bool cut = op.kind == "reduce_scatter";
            for (size_t i = 0; i < (cut ? op.in.size() : 1); ++i) {
                ops.push_back(op);
                if (!cut) continue;
                any = true;
                ops.back().kind = "slice", ops.back().kernel = "reference.slice";
                ops.back().in = {op.in[i]}, ops.back().out = {op.out[i]};
            }
        }
        r.ops = std::move(ops);
    }
    return any;
}

// Along the batch instead of the sequence; the bytes are the same.
bool other_dim(const mesh::Mesh& mesh, Routine& r, Op& op) {
    const ir::Tensor& t = r.tensors[op.in[0]];
    if (op.integer("dim") != 1 || t.dims.size() < 2 || ir::local_size(mesh, r, t, 0) < 2) return false;
    op.attrs["dim"] = int64_t{0};
    return true;
}

// Takes the tensor-parallel axes out of the last sum of some gradients: those of norms, or of what decays (keys and values).
bool forget_tensor_parallel(Program& p, bool decay) {
    bool any = false;
    for (Routine& r : p.routines) {
        if (r.kind != RoutineKind::ReduceStep) continue;
        std::vector<Op> ops;
        for (const Op& op : r.ops) {
            Op rest = op, without = op;
            AxisList data;
            for (int a : op.group) {
                if (p.mesh.sub_axes[a].axis != mesh::Axis::tp) data.push_back(a);
            }
            if (op.kind == "all_reduce" && data.size() < op.group.size()) {
                const auto matches = [&](TensorId t) { return p.unit(r.unit)->segments[r.tensors[t].dims[0]].decay == decay; };
                for (auto* list : {&rest.in, &rest.out}) std::erase_if(*list, matches);
                for (auto* list : {&without.in, &without.out}) std::erase_if(*list, [&](TensorId t) { return !matches(t); });
                without.group = data;
                any = any || !without.in.empty();
                if (!without.in.empty() && !data.empty()) ops.push_back(without);
            }
            if (!rest.in.empty()) ops.push_back(rest);
        }
        r.ops = std::move(ops);
    }
    return any;
}

bool twice(Program& p) {
    bool any = false;
    for (Routine& r : p.routines) {
        if (r.kind != RoutineKind::ReduceStep || r.ops.empty() || r.ops.back().kind != "all_reduce") continue;
        r.ops.push_back(r.ops.back());
        any = true;
    }
    return any;
}

// all_reduce(branch), add(x, sum) becomes add(x, branch), all_reduce: x is summed over the ranks too.
bool sum_residual_too(Program& p) {
    bool any = false;
    for (Routine& r : p.routines) {
        if (r.kind != RoutineKind::Forward || r.block != "layer") continue;
        for (size_t i = 0; i + 1 < r.ops.size(); ++i) {
            Op &sum = r.ops[i], &add = r.ops[i + 1];
            if (sum.kind != "all_reduce" || add.kind != "add" || add.in.size() != 2 || add.in[1] != sum.out[0]) continue;
            const TensorId between = sum.out[0], result = add.out[0];
            if (r.tensors[result].view_of >= 0) continue;
            add.in[1] = sum.in[0], add.out = {between};
            sum.in = {between}, sum.out = {result};
            std::swap(sum, add);
            any = true;
        }
    }
    return any;
}

bool set_count_if(Op& op, const AxisList& axes) {
    const std::vector<int64_t> list(axes.begin(), axes.end());
    return op.attrs["count_if"] != ir::Attr(list) && (op.attrs["count_if"] = list, true);
}

// Sums over the vocabulary's shards are taken as maxima. (Maxima taken as sums shift all logits alike and change nothing.)
bool sums_as_maxima(Program& p) {
    return each_op(p, kCompute, "all_reduce", [](Routine& r, Op& op) {
        ir::Tensor& t = r.tensors[op.in[0]];
        if (!t.name.starts_with("z") || t.placement.reduce == ir::Reduce::Max) return false;
        t.placement.reduce = ir::Reduce::Max;
        return true;
    });
}

}  // namespace

std::vector<Defect> communication_defects() {
    const auto on_program = [](bool (*edit)(Program&)) { return in_programs(edit); };
    const auto along_batch = [](const char* kind) {
        return in_programs([kind](Program& p) {
            return each_op(p, kCompute, kind, [&](Routine& r, Op& op) { return other_dim(p.mesh, r, op); });
        });
    };
    const auto counted_if = [](const char* kind, bool by_rank_0) {
        return in_programs([=](Program& p) {
            return each_op(p, kStats, kind,
                           [&](Routine&, Op& op) { return set_count_if(op, by_rank_0 ? p.mesh.all() : AxisList{}); });
        });
    };
    return {
        in_ops("the step's all_reduce of gradients is dropped", kReduceStep, "all_reduce", drop),
        in_ops("the step's all_reduce leaves out a sub-axis", kReduceStep, "all_reduce", drop_last_axis),
        {"the step's all_reduce runs twice", on_program(twice)},
        {"gradients of norms are not summed over tp", in_programs([](Program& p) { return forget_tensor_parallel(p, false); })},
        {"gradients of shared keys and values are not summed over tp",
         in_programs([](Program& p) { return forget_tensor_parallel(p, true); })},
        {"the step's reduce_scatter keeps each rank's own part", on_program(slice_own)},
        {"gradients are scattered over outer ranks first", in_programs(scatter_outer_first)},
        in_ops("padding of gradients is not cleared", kReductions, "zero_padding", drop),
        in_ops("weights are gathered in reverse order", kGather, "all_gather", reverse_group),
        in_ops("the update cuts the wrong slice", kUpdate, "slice", reverse_group),
        in_ops("updated weights are not gathered", kUpdate, "all_gather", drop),
        in_ops("a forward's sum over tp is left out", kForwards, "all_reduce", keep_own),
        in_ops("a backward's sum over tp is left out", kBackwards, "all_reduce", keep_own),
        {"a gather of activations runs along the batch", along_batch("all_gather")},
        {"a reduce_scatter of activations runs along the batch", along_batch("reduce_scatter")},
        {"the residual is summed over tp with the branch", on_program(sum_residual_too)},
        {"sums over the vocabulary's shards are maxima", on_program(sums_as_maxima)},
        {"every rank counts its squares in the norm", counted_if("sum_squares", false)},
        {"rank 0 alone counts its squares in the norm", counted_if("sum_squares", true)},
        {"every rank counts its loss", counted_if("owned", false)},
        in_ops("norm and loss are summed over too few sub-axes", kStats, "all_reduce", drop_last_axis),
    };
}

}  // namespace lockstep::testing
