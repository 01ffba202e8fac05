#include "passes/route.h"

#include <algorithm>

#include "ops/cost.h"
#include "ops/ways.h"

namespace lockstep::passes {

ir::Program route(ir::Program program, const RouteOptions& options) {
    if (options.topology.is_one_process()) return program;
    ops::PlacedGroups groups(program, options.topology);
    for (ir::Routine& r : program.routines) {
        for (ir::Op& op : r.ops) {
            if (!ops::rule(op.kind).collective || ir::meeting_of(op) != ir::Meeting::All) continue;
            if (!mesh::traits_of(ops::collective_of(op)).has_ways) continue;
            double bytes = 0;
            for (size_t i = 0; i < op.in.size(); ++i) bytes = std::max(bytes, ops::block_bytes(program.mesh, r, op, i));
            std::optional<mesh::Way> way;
            for (const ops::Placed& group : groups.of(op)) {
                const mesh::Way wanted =
                    mesh::choose_way(group.layout, ops::collective_of(op), static_cast<int64_t>(bytes), options.small_bytes);
                if (!way) way = wanted;
                else if (*way != wanted) way = mesh::Way{mesh::GatherBy::Ring, mesh::ReduceBy::Direct};
            }
            ops::set_way(op, *way);
        }
    }
    return program;
}

}  // namespace lockstep::passes
