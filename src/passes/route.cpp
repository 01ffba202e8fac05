#include "passes/route.h"

#include <algorithm>

#include "ops/algorithms.h"
#include "ops/cost.h"

namespace lockstep::passes {

ir::Program route(ir::Program program, const RouteOptions& options) {
    if (options.topology.is_one_process()) return program;
    ops::PlacedGroups groups(program, options.topology);
    for (ir::Routine& r : program.routines) {
        for (ir::Op& op : r.ops) {
            const std::optional<mesh::Collective> kind = mesh::collective_named(op.kind);
            if (!kind || !mesh::traits_of(*kind).has_algorithm()) continue;
            double bytes = 0;
            for (size_t i = 0; i < op.in.size(); ++i) bytes = std::max(bytes, ops::block_bytes(program.mesh, r, op, i));
            std::optional<mesh::CollectiveAlgorithm> algorithm;
            for (const ops::GroupsOfOneLayout& group : groups.of(op)) {
                const mesh::CollectiveAlgorithm wanted =
                    mesh::choose_algorithm(group.layout, *kind, static_cast<int64_t>(bytes), options.small_bytes);
                if (!algorithm) algorithm = wanted;
                else if (*algorithm != wanted)
                    algorithm = mesh::CollectiveAlgorithm{mesh::GatherBy::Ring, mesh::ReduceBy::Direct};
            }
            const bool is_sum = r.tensors[op.in[0]].placement.reduce != ir::Reduce::Max;
            if (options.library_sums && mesh::traits_of(*kind).reduces && is_sum)
                algorithm = mesh::CollectiveAlgorithm{mesh::GatherBy::Ring, mesh::ReduceBy::Library};
            ops::set_algorithm(op, *algorithm);
        }
    }
    return program;
}

}  // namespace lockstep::passes
