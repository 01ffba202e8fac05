// What islands have changed, on average: over the axis `island` of the mesh, or through the service in which islands that are
// jobs of their own meet.
#pragma once

#include <vector>

#include "ir/program.h"
#include "passes/partition_options.h"

namespace lockstep::passes {

// to = the sum of `from` over the islands; each of them has put in its share. One tensor a segment, split as the optimizer's
// states are. Quantized: as int8, but for segments without decay.
void mean_of_islands(ir::Routine& r, const ir::Program& program, const ir::Unit& unit, const OuterOptions& options,
                     const std::vector<ir::TensorId>& from, const std::vector<ir::TensorId>& to);

}  // namespace lockstep::passes
