// Requires: routines with ports; units.
// Produces: the buffers of a step and, for every entry, its list of calls with their bindings. The train entry: count and begin;
//   for every microbatch forwards, loss chunks and backwards, each with the gathers, frees and reductions of the units that it
//   binds; then reduce_step after the last call that accumulates into a unit, stats, update. This list is the only loop.
// Leaves alone: routines, but for the sizes of their ports.
#pragma once

#include "ir/program.h"

namespace lockstep::passes {

ir::Program schedule(ir::Program program);

}  // namespace lockstep::passes
