// Requires: final ops with placements; a KernelCatalog.
// Produces: a kernel name and workspace on every op. Of several kernels that serve an op, the fastest by the catalog's cost
//   table is chosen; without a cost table, the first. Composites without a kernel are expanded, with placements by the rule of
//   the composite's own iteration space. Several ops become one where a kernel serves it (passes/fuse_ops). An accumulate is
//   folded into the op that makes its operand where the kernel can add.
// Leaves alone: collectives and what they carry (their kernel is `comm`); copies between the memories of a device and its host
//   (kDeviceCopy).
#pragma once

#include "ir/program.h"
#include "ops/catalog.h"

namespace lockstep::passes {

ir::Program select_kernels(ir::Program program, const ops::KernelCatalog& catalog);

// For routines that later passes add (gather, reduce, stats, update, snapshot).
void select_kernels(const ir::Program& program, ir::Routine& routine, const ops::KernelCatalog& catalog);
// The same for a routine whose values are all in the device's memory.
void select_kernels(const mesh::Mesh& mesh, ir::Routine& routine, const ops::KernelCatalog& catalog);

// Seconds of a placed op by the catalog's cost table, which it must have: on the kernel that the op will get, operands in
// memory; by the table's rates where no kernel or no row speaks of it.
double expected_s(const mesh::Mesh& mesh, const ir::Routine& routine, const ir::Op& op, const ops::KernelCatalog& catalog);

}  // namespace lockstep::passes
