// The invariant of verify.h about rings: whose keys a block of attention reads, where sums of their gradients are, and in which
// order the tokens of one document are.
#pragma once

#include <optional>

#include "ir/program.h"
#include "ops/verify.h"

namespace lockstep::ops {

// How many blocks of keys the queries of a rank can see, of a ring of `ranks` that have `rows` tokens each: all, or fewer if a
// window slides and tokens are in their plain order.
int64_t blocks_in_sight(int64_t ranks, int64_t rows, int64_t window, bool in_plain_order);

// The parts of each routine are followed in their order: a value port of a part continues the value of its name.
std::optional<Violation> wrong_ring(const ir::Program& program);

}  // namespace lockstep::ops
