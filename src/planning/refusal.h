// Whether a compiled program may run: it is proved, and held against the memory of a rank.
#pragma once

#include <optional>

#include "base/error.h"
#include "compile/compile.h"
#include "planning/capacity.h"

namespace lockstep::planning {

// Proves the program that `options` compiled, and holds it against the memory of a rank. check.does_not_fit, with what would
// help, and check.host_memory of the host's memory next to a device; nothing: it fits.
std::optional<UserError> refusal_of(const compile::Config& config, const compile::CompileOptions& options,
                                    const compile::Compiled& compiled, const Capacity& capacity);
// The same, thrown.
void require_runnable(const compile::Config& config, const compile::CompileOptions& options, const compile::Compiled& compiled,
                      const Capacity& capacity);

}  // namespace lockstep::planning
