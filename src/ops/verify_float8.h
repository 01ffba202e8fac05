// What holds of tensors of float8, between any two passes: which ops make and read them, that each rank has the scales of its own
// elements, and that a scale comes from the largest size of what it scales.
#pragma once

#include <optional>

#include "ops/verify.h"

namespace lockstep::ops {

std::optional<Violation> wrong_float8(const ir::Program& program, const ir::Routine& routine);

}  // namespace lockstep::ops
