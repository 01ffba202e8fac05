// What partition_parameters adds to a program: the routines of a unit, named in its header, and the one that ends the step's
// statistics. Before their kernels are chosen.
#pragma once

#include <vector>

#include "passes/partition_options.h"

namespace lockstep::passes {

// gather and free, where weights are split or stored in another type.
std::vector<ir::Routine> reading_routines(const ir::Program& program, const ir::Unit& unit, const PartitionOptions& options);
// reduce_micro, reduce_step, stats, update, snapshot, as far as the unit needs them.
std::vector<ir::Routine> training_routines(const ir::Program& program, const ir::Unit& unit, const PartitionOptions& options);
// Norm and loss over the world, then the step's control scalars, the same on every rank.
ir::Routine stats_all(const ir::Program& program, const PartitionOptions& options);

}  // namespace lockstep::passes
