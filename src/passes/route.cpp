#include "passes/route.h"

#include <algorithm>

#include "ops/algorithms.h"
#include "ops/cost.h"

namespace lockstep::passes {

namespace {

// None: such a collective has one.
std::optional<mesh::CollectiveAlgorithm> algorithm_of(const ir::Program& program, const ir::Routine& r, const ir::Op& op,
                                                      ops::PlacedGroups& groups, const RouteOptions& options) {
    const mesh::CollectiveTraits& traits = ir::traits_of(op);
    if (!traits.has_algorithm()) return std::nullopt;
    if (options.library_sums && traits.reduces && r.tensors[op.in[0]].placement.reduce != ir::Reduce::Max)
        return mesh::CollectiveAlgorithm{mesh::GatherBy::Ring, mesh::ReduceBy::Library};
    double bytes = 0;
    for (size_t i = 0; i < op.in.size(); ++i) bytes = std::max(bytes, ops::block_bytes(program.mesh, r, op, i));
    std::optional<mesh::CollectiveAlgorithm> algorithm;
    for (const ops::GroupsOfOneLayout& group : groups.of(op)) {
        const mesh::CollectiveAlgorithm wanted =
            mesh::choose_algorithm(group.layout, traits.kind, static_cast<int64_t>(bytes), options.small_bytes);
        if (!algorithm) algorithm = wanted;
        else if (*algorithm != wanted) algorithm = mesh::CollectiveAlgorithm{mesh::GatherBy::Ring, mesh::ReduceBy::Direct};
    }
    return algorithm;
}

}  // namespace

ir::Program route(ir::Program program, const RouteOptions& options) {
    if (options.topology.is_one_process()) return program;
    ops::PlacedGroups groups(program, options.topology);
    const auto is_on_one_host = [](const ops::GroupsOfOneLayout& group) { return group.layout.hosts() == 1; };
    for (ir::Routine& r : program.routines) {
        for (ir::Op& op : r.ops) {
            if (!mesh::collective_named(op.kind)) continue;
            const std::optional<mesh::CollectiveAlgorithm> algorithm = algorithm_of(program, r, op, groups, options);
            if (algorithm) ops::set_algorithm(op, *algorithm);
            const bool by_library = algorithm && ir::traits_of(op).reduces && algorithm->reduce == mesh::ReduceBy::Library;
            ops::set_by_peers(op, options.topology.peers && !by_library && std::ranges::all_of(groups.of(op), is_on_one_host));
        }
    }
    return program;
}

}  // namespace lockstep::passes
