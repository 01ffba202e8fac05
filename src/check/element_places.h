// Whether an op that draws for each element draws for the elements that it has.
#pragma once

#include <string>

#include "ir/program.h"

namespace lockstep::check {

// Of an op on a segment, with the attributes of ops/element_places.h. Empty, or what is wrong.
std::string wrong_places(const ir::Program& program, const ir::Segment& segment, const ir::Op& op);

}  // namespace lockstep::check
