// The invariants of verify.h about where tensors are placed: collective, blocks, space and partial.
#pragma once

#include <optional>

#include "ir/program.h"
#include "ops/verify.h"

namespace lockstep::ops {

// How the op's results are placed otherwise than its operands make them.
// Of an op whose shape is right and whose tensors are placed.
std::optional<Violation> wrong_placement(const ir::Program& program, const ir::Routine& routine, const ir::Op& op);

// Each rank has another block. Block ops join blocks, and permute passes them on. Any other collective over the same ranks
// would combine different blocks.
std::optional<Violation> blocks_that_meet(const ir::Program& program, const ir::Routine& routine);

}  // namespace lockstep::ops
