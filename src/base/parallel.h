// Independent work on all processors, for what is not on the path of a step:
// compiling and checking the programs of many stages.
#pragma once

#include <cstddef>

#include "base/function_ref.h"

namespace lockstep {

// f(i) for every i below n, each once, several at a time. Of exceptions that of the lowest i is thrown when all have ended.
void parallel_for(size_t n, FunctionRef<void(size_t)> f);

}  // namespace lockstep
