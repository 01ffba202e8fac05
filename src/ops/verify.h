// What holds of every program between any two passes. The runner in compile/ enforces it after each pass.
//   names      tensors, ports and dims of a routine have unique names, and refer to each other inside their tables
//   shape      every op kind exists; operands, results and attributes agree with its rule
//   ssa        a temporary is defined once and before it is used; what a read port brings is not written; what a written
//              port takes away is written; a sum in a port is added to
//   placement  one list a dim; no sub-axis stands twice in a tensor; sizes divide evenly; all tensors of a routine or none are
//              placed
//   space      an op runs in one iteration space: each dim has the same placement in all its operands and results
//   partial    a result is partial over what its operands pass and what it lost, and a partial operand stands only where the
//              op is linear in it
//   collective operand and result placements differ by exactly the group
//   blocks     blocks fit what they come from or make, and only `permute` meets other ranks' blocks
//   qkv        a list of queries, keys and values (the dims qkv, kv_heads, head_dim) is whole but for a rank's own heads. Ops
//              that do not take it apart read it as a list: nothing joins or cuts it, and no dim of it meets one of heads
//   border     what crosses between blocks (x, y, d.x, d.y) and loader inputs are never partial
//   precision  sums, statistics and the loss are never bfloat16; a unit's routines keep to its element types; what forward
//              reads is cast from the master weights after their update
//   kernel     when one op of a routine has a kernel, all have
//   instance   routines of a block that name their instances, ascending, serve each of them once together; a call is of one
//              that its routine serves
//   view       a view has the bytes of what it views
//   unit       segments and members lie inside their unit, apart from each other; weights | gradients | optimizer are nested
//   call       bindings fit ports and buffers; waits name earlier calls
//   arena      planned buffers lie inside the arena of their place, aligned
#pragma once

#include <optional>
#include <string>

#include "ir/program.h"

namespace lockstep::ops {

struct Violation {
    std::string invariant;  // a name of the list above
    std::string message;    // routine, op or call, and what is wrong
};

std::optional<Violation> verify(const ir::Program& program);

}  // namespace lockstep::ops
