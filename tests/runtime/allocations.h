// Counts calls of operator new in the whole test program.
#pragma once

#include <cstdint>

namespace lockstep::testing {

int64_t allocations();

}  // namespace lockstep::testing
