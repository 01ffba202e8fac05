// The memory part of check: what every read finds, in every execution that streams and waits allow.
#pragma once

#include <string>

#include "ir/program.h"

namespace lockstep::passes {

// Empty, or the first thing wrong.
std::string check_memory(const ir::Program& program, const ir::Entry& entry);

}  // namespace lockstep::passes
