// What partition_parameters makes last: the states of a unit's parameters, and those of a step's end.
#pragma once

#include <optional>

#include "passes/partition_options.h"

namespace lockstep::passes {

// Only weights where nothing is trained. Else gradients, the optimizer's states and, where asked for, their copies.
// `sums`: the type in which gradients add up; nothing: the program does not train.
void add_unit_states(ir::Program& program, const ir::Unit& unit, const PartitionOptions& options, std::optional<Dtype> sums);

// The gradients' norm, the learning rate, the number of steps that counted, and what updates obey.
void add_step_states(ir::Program& program);

}  // namespace lockstep::passes
