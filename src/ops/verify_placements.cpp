#include "ops/verify_placements.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "ops/algorithms.h"
#include "ops/rule.h"

namespace lockstep::ops {
namespace {

using ir::AxisList;
using Found = std::optional<Violation>;

bool is_flat(const Routine& r, TensorId t) {
    return r.tensors[t].dims.size() == 1 && r.dims[r.tensors[t].dims[0]].role == ir::DimRole::Flat;
}

bool is_placed_as(const ir::Placement& expected, const ir::Placement& given) {
    return expected.dims == given.dims && expected.partial == given.partial;
}

Found wrong_collective(const ir::Program& p, const Routine& r, const Op& op) {
    const auto wrong = [&](const std::string& what) -> Found {
        return Violation{Invariant::Collective, fmt::format("{}, {} of {}: {}", r.name, op.kind,
                                                            r.tensors[op.in.empty() ? op.out[0] : op.in[0]].name, what)};
    };
    if (op.group.empty()) return wrong("its group is empty");
    if (op.kind == ir::kSlice) {
        ir::Placement expected = r.tensors[op.in[0]].placement;
        const auto dim = static_cast<size_t>(op.integer("dim"));
        if (dim >= expected.dims.size()) return wrong("it has no such dim");
        expected.dims[dim] = mesh::join(expected.dims[dim], op.group);
        const ir::Placement& given = r.tensors[op.out[0]].placement;
        return is_placed_as(expected, given) ? std::nullopt : wrong("the result is placed otherwise");
    }
    const mesh::CollectiveTraits& traits = ir::traits_of(op);
    if (const std::string what = wrong_algorithm(op); !what.empty()) return wrong(what);
    if (!traits.symmetric) {
        const int64_t peer = op.integer("peer");
        if (op.group != p.mesh.whole(mesh::Axis::pp)) return wrong("its group is not that of the pipeline");
        if (peer < 0 || peer >= p.mesh.degree(mesh::Axis::pp) || peer == p.pipeline_rank)
            return wrong(fmt::format("its peer, pipeline rank {}, is this rank or none", peer));
        return std::nullopt;
    }
    const int64_t members = p.mesh.size(op.group);
    using mesh::Attr;
    if (traits.has(Attr::By) && (op.integer("by") < 1 || op.integer("by") >= members))
        return wrong(fmt::format("its shift by {} is not between 1 and {}", op.integer("by"), members - 1));
    if (traits.has(Attr::Root) && (op.integer("root") < 0 || op.integer("root") >= members))
        return wrong(fmt::format("its root {} is none of {} ranks", op.integer("root"), members));
    for (size_t i = 0; i < op.in.size(); ++i) {
        const ir::Tensor &in = r.tensors[op.in[i]], &out = r.tensors[op.out[i]];
        if (in.dtype != out.dtype) return wrong(fmt::format("makes {} of {}", name_of(out.dtype), name_of(in.dtype)));
        ir::Placement expected = in.placement;
        const auto dim = [&](Attr attr) { return static_cast<size_t>(op.integer(name_of(attr))); };
        for (const Attr attr : {Attr::Dim, Attr::From, Attr::To}) {
            if (traits.has(attr) && dim(attr) >= expected.dims.size()) return wrong("it has no such dim");
        }
        const bool loses = traits.takes == mesh::Blocks::Members, gains = traits.gives == mesh::Blocks::Members;
        if (loses) {
            AxisList& axes = expected.dims[dim(gains ? Attr::From : Attr::Dim)];
            if (axes.size() < op.group.size() || !std::equal(op.group.rbegin(), op.group.rend(), axes.rbegin()))
                return wrong("the dim does not end in the group");
            axes.resize(axes.size() - op.group.size());
        }
        if (gains) {
            AxisList& axes = expected.dims[dim(loses ? Attr::To : Attr::Dim)];
            axes = mesh::join(axes, op.group);
        }
        if (traits.reduces) {
            // Gradients' shards are partial by their segment, not by a placement of their own.
            const bool flat = is_flat(r, op.in[i]);
            if (!flat && !mesh::is_subset(op.group, in.placement.partial))
                return wrong("it reduces what is not partial over the group");
            expected.partial = mesh::subtract(in.placement.partial, op.group);
        }
        if ((traits.kind == mesh::Collective::AllToAll || traits.kind == mesh::Collective::Broadcast) &&
            mesh::meet(in.placement.partial, op.group))
            return wrong("its operand is a partial sum over the group");
        if (traits.kind == mesh::Collective::Broadcast) {
            for (const AxisList& axes : in.placement.dims) {
                if (mesh::meet(axes, op.group)) return wrong("its operand is split over the group");
            }
        }
        if (!is_placed_as(expected, out.placement)) return wrong("the result is placed otherwise");
    }
    return std::nullopt;
}

// Blocks have the group's axes nowhere; what they come from or make has them in its dim, or is whole along them.
Found wrong_blocks(const ir::Program& p, const Routine& r, const Op& op) {
    const auto wrong = [&](const std::string& what) -> Found {
        return Violation{Invariant::Blocks, fmt::format("{}, {} of {}: {}", r.name, op.kind, r.tensors[op.in[0]].name, what)};
    };
    const int64_t members = p.mesh.size(op.group);
    if (members < 2) return wrong("its group has one rank");
    const auto dim = static_cast<size_t>(op.integer("dim"));
    const bool takes = op.kind == ir::kBlock;
    const ir::Tensor &whole = r.tensors[takes ? op.in[0] : op.out[0]], &block = r.tensors[takes ? op.out[0] : op.in[0]];
    // Of groups that are as large as what a rank has, each block is in the rank's own.
    const ir::Dim &all = r.dims[static_cast<size_t>(whole.dims[dim])], &one = r.dims[static_cast<size_t>(block.dims[dim])];
    const bool is_in_a_group = takes && all.of >= 0 && all.size == one.size && all.size == p.mesh.size(whole.placement.dims[dim]);
    if (all.size != members * one.size && !is_in_a_group) return wrong("a rank has not one block");
    if (!takes && static_cast<int64_t>(op.in.size()) != members) return wrong("not every rank has a block");
    if (takes && op.integer("shift") >= members) return wrong("it is shifted by more ranks than there are");
    for (TensorId t : takes ? op.out : op.in) {
        if (r.tensors[t].placement != block.placement || r.tensors[t].dtype != whole.dtype)
            return wrong(r.tensors[t].name + " differs from the other blocks in placement or type");
    }
    ir::Placement expected = block.placement;
    AxisList& axes = expected.dims[dim];
    const bool splits = takes ? whole.placement.dims[dim] != axes : op.kind == ir::kSumBlocks;
    if (splits) axes = mesh::join(axes, op.group);
    if (op.kind == ir::kSumBlocks) {
        if (!mesh::is_subset(op.group, expected.partial)) return wrong("it sums what is not partial over the group");
        expected.partial = mesh::subtract(expected.partial, op.group);
    } else if (mesh::meet(expected.partial, op.group)) {
        return wrong("its blocks are partial sums over the group");
    }
    if (takes && splits && op.integer("shift") != 0) return wrong("a rank has its own block only");
    if (expected != whole.placement) return wrong("the whole has another placement than its blocks");
    return std::nullopt;
}

// May an op have these sub-axes on both dims? On aligned ones, where it pairs equal blocks or means all pairs.
bool pairs(const Routine& r, const Op& op, DimId a, DimId b, const AxisList& both) {
    const auto root = [&](DimId d) { return r.dims[d].of < 0 ? d : r.dims[d].of; };
    const Sharding& s = rule(op.kind).sharding;
    return root(a) == root(b) && (s.aligned || (s.meets && mesh::is_subset(both, op.group)));
}

Found wrong_space_and_partial(const ir::Program& p, const Routine& r, const Op& op) {
    std::vector<std::pair<DimId, const AxisList*>> space;
    AxisList used, passed;
    const OpRule& k = rule(op.kind);
    for (const std::vector<TensorId>* list : {&op.in, &op.out}) {
        for (TensorId t : *list) {
            for (size_t i = 0; i < r.tensors[t].dims.size(); ++i) {
                const AxisList& axes = r.tensors[t].placement.dims[i];
                const AxisList* known = nullptr;
                for (const auto& [dim, others] : space) {
                    if (dim == r.tensors[t].dims[i]) known = others;
                    else if (const AxisList both = mesh::intersect(*others, axes);
                             !both.empty() && !pairs(r, op, dim, r.tensors[t].dims[i], both))
                        return Violation{Invariant::Space,
                                         fmt::format("{}, op {}: '{}' splits both {} and {}: each rank would see one pair "
                                                     "of blocks, not all",
                                                     r.name, op.kind, p.mesh.text(mesh::intersect(*others, axes)),
                                                     r.dims[static_cast<size_t>(dim)].name,
                                                     r.dims[static_cast<size_t>(r.tensors[t].dims[i])].name)};
                }
                if (known && *known != axes) {
                    return Violation{Invariant::Space, fmt::format("{}, op {}: {} is not placed where the op runs", r.name,
                                                                   op.kind, r.tensors[t].name)};
                }
                if (known) continue;
                space.emplace_back(r.tensors[t].dims[i], &axes);
                used = mesh::unite(used, axes);
            }
        }
    }
    for (size_t i = 0; i < op.in.size(); ++i) {
        const AxisList& partial = r.tensors[op.in[i]].placement.partial;
        if (partial.empty()) continue;
        if (!is_linear(r, op, static_cast<int>(i)))
            return Violation{Invariant::Partial, fmt::format("{}, op {}: is not linear in {}, which is a partial sum", r.name,
                                                             op.kind, r.tensors[op.in[i]].name)};
        if (static_cast<int>(i) == k.sharding.addend) continue;  // below
        if (!k.sharding.linear_in_all_together && mesh::meet(passed, partial)) {
            return Violation{Invariant::Partial, fmt::format("{}, op {}: a product of two partial sums", r.name, op.kind)};
        }
        if (k.sharding.linear_in_all_together && i > 0 && partial != r.tensors[op.in[0]].placement.partial) {
            return Violation{Invariant::Partial,
                             fmt::format("{}, op {}: adds terms that are partial over different axes", r.name, op.kind)};
        }
        passed = mesh::unite(passed, partial);
    }
    if (k.sharding.linear_in_all_together) {
        for (TensorId t : op.in) {
            if (r.tensors[t].placement.partial != passed)
                return Violation{Invariant::Partial,
                                 fmt::format("{}, op {}: adds a whole term to a partial sum", r.name, op.kind)};
        }
    }
    if (k.sharding.addend >= 0 && r.tensors[op.in[k.sharding.addend]].placement.partial != r.tensors[op.out[0]].placement.partial)
        return Violation{Invariant::Partial, fmt::format("{}, op {}: adds a whole term to a partial sum", r.name, op.kind)};
    for (size_t i = 0; i < op.out.size(); ++i) {
        const TensorId t = op.out[i];
        AxisList expected = passed;
        if (!is_repeated(op, static_cast<int>(i)))
            expected = mesh::unite(passed, mesh::subtract(used, r.tensors[t].placement.used()));
        if (r.tensors[t].placement.partial != expected) {
            return Violation{Invariant::Partial,
                             fmt::format("{}, op {}: {} is partial over '{}', not over '{}'", r.name, op.kind, r.tensors[t].name,
                                         p.mesh.text(expected), p.mesh.text(r.tensors[t].placement.partial))};
        }
    }
    return std::nullopt;
}

}  // namespace

std::optional<Violation> wrong_placement(const ir::Program& p, const Routine& r, const Op& op) {
    if (rule(op.kind).collective || op.kind == ir::kSlice) return wrong_collective(p, r, op);
    if (rule(op.kind).sharding.of_blocks) return wrong_blocks(p, r, op);
    if (rule(op.kind).step_end.of_states) return std::nullopt;
    if (!rule(op.kind).gives_amax) return wrong_space_and_partial(p, r, op);
    for (const Op& piece : pieces_of(op)) {
        if (const Found wrong = wrong_space_and_partial(p, r, piece)) return wrong;
    }
    return std::nullopt;
}

std::optional<Violation> blocks_that_meet(const ir::Program& p, const Routine& r) {
    if (std::none_of(r.ops.begin(), r.ops.end(), [](const Op& op) { return rule(op.kind).sharding.of_blocks; }))
        return std::nullopt;
    std::vector<AxisList> over(r.tensors.size());  // the group whose blocks a tensor is one of
    for (const Op& op : r.ops) {
        AxisList group;
        for (TensorId t : op.in) group = mesh::unite(group, over[t]);
        const std::optional<mesh::Collective> kind = mesh::collective_named(op.kind);
        const bool joins = kind && *kind != mesh::Collective::Permute;
        if (joins && mesh::meet(group, op.group))
            return Violation{Invariant::Blocks,
                             fmt::format("{}: {} over {} is given {}, but each rank there has another block of it", r.name,
                                         op.kind, p.mesh.text(op.group), r.tensors[op.in[0]].name)};
        if (op.kind == ir::kBlock) group = mesh::unite(group, op.group);
        else if (rule(op.kind).sharding.of_blocks) group = mesh::subtract(group, op.group);
        for (TensorId t : op.out) over[t] = group;
    }
    return std::nullopt;
}

}  // namespace lockstep::ops
