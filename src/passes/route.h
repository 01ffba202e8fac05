// Requires: placed collectives; where the ranks of the job run.
// Produces: on each collective but transfers the way of its data over processes and hosts (mesh/ways.h): the attributes `gather`
//   and `reduce`, and `level` where its sums have two. One way for all groups of an op: where they lie differently, each could
//   want its own, so the plain ones are taken. In one process nothing is said, and sums are in ascending order.
// Leaves alone: everything else.
#pragma once

#include "ir/program.h"
#include "mesh/ways.h"

namespace lockstep::passes {

struct RouteOptions {
    mesh::Topology topology;
    int64_t small_bytes = mesh::kSmallBytes;
};

ir::Program route(ir::Program program, const RouteOptions& options);

}  // namespace lockstep::passes
