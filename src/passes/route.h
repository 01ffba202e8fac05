// Requires: placed collectives; where the ranks of the job run.
// Produces: on each collective that gathers or reduces the algorithm by which its data moves over processes and hosts
//   (mesh/algorithms.h): the attributes `gather` and `reduce`, and `level` if its sums have two levels. All groups of an op
//   have one algorithm: if their ranks lie differently over hosts, the plain one. Where a library sums, sums between processes
//   are its own. In one process nothing is said, and sums are in ascending order.
//   On each collective whose groups are on one host each, where GPUs of a host write to each other's memory: that they do
//   (transport = 'peer'), unless a library sums.
// Leaves alone: everything else.
#pragma once

#include "ir/program.h"
#include "mesh/algorithms.h"

namespace lockstep::passes {

struct RouteOptions {
    mesh::Topology topology;
    int64_t small_bytes = mesh::kSmallBytes;
    bool library_sums = false;  // by the transport's library, in its order. Maxima never are
};

ir::Program route(ir::Program program, const RouteOptions& options);

}  // namespace lockstep::passes
