// What kernels need in addition to operands and results. Only the catalog of the machine knows it.
#pragma once

#include <string>

#include "ir/program.h"
#include "ops/catalog.h"

namespace lockstep::check {

// Every op has a kernel of the catalog and the workspace that it needs. Empty, or the first op that has not.
std::string wrong_workspaces(const ir::Program& program, const ops::KernelCatalog& kernels);

}  // namespace lockstep::check
