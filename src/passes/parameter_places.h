// Where the elements of a unit's segment are in whole parameters, from how these are sharded.
#pragma once

#include "ops/element_places.h"

namespace lockstep::passes {

// Requires: only the first dim of a parameter is padded.
ops::ElementPlaces parameter_places(const ir::Program& program, const ir::Segment& segment);

}  // namespace lockstep::passes
