// What holds of every program between any two passes. The runner in compile/ enforces it after each pass.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "ir/program.h"

namespace lockstep::ops {

enum class Invariant {
    // Tensors, ports and dims of a routine have unique names, and refer to each other inside their tables
    Names,
    // Every op kind exists; operands, results and attributes agree with its rule
    Shape,
    // A temporary is defined once and before it is used; what a read port brings is not written; what a written port
    // takes away is written; a sum in a port is added to
    Ssa,
    // One list a dim; no sub-axis is twice in a tensor; sizes divide evenly; all tensors of a routine or none are
    // placed
    Placement,
    // An op runs in one iteration space: each dim has the same placement in all its operands and results
    Space,
    // A result is partial over what its operands pass and what it lost, and a partial operand occurs only where the op is
    // linear in it
    Partial,
    // Operand and result placements differ by exactly the group
    Collective,
    // Blocks fit what they come from or make, and only `permute` joins with other ranks' blocks
    Blocks,
    // Attention over the blocks of a ring meets each block that its queries can see once, with the positions and documents of
    // its keys. What else reads a sum has it of all blocks, and those of the gradients of keys are of the rank that has them
    Ring,
    // A list of queries, keys and values (the dims qkv, kv_heads, head_dim) is whole but for a rank's own heads. Ops that
    // do not take it apart read it as a list: nothing joins or cuts it, and no dim of it is in an op with one of heads
    Qkv,
    // Float8 is made by to_float8 and to_blocks, and read by scaled_einsum and from_float8; all else moves it, and no sum of it is
    // partial. So it is with scales in E8M0. A rank has the scales of its own elements, and whole blocks of a to_blocks. The amax
    // of a to_float8 is that of its operand
    Float8,
    // What crosses between blocks (x, y, d.x, d.y) and loader inputs are never partial
    Border,
    // Sums, statistics and the loss are never bfloat16; a unit's routines keep to its element types; what forward reads
    // is cast from the master weights after their update
    Precision,
    // When one op of a routine has a kernel, all have
    Kernel,
    // Routines of a block that name their instances, ascending, serve each of them once together; a call is of one that
    // its routine serves
    Instance,
    // A part follows the part before it and serves the same instances
    Part,
    // A view has the bytes of what it views
    View,
    // Segments and members lie inside their unit, apart from each other; weights | gradients | optimizer are nested
    Unit,
    // States agree with their units and blocks; routines and calls bind them in their type and split, and change them
    // only as their writer
    State,
    // Bindings fit ports and buffers; waits name earlier calls
    Call,
    // Planned buffers lie inside the arena of their place, aligned
    Arena,
};
std::string_view name_of(Invariant invariant);  // "names"

struct Violation {
    Invariant invariant;
    std::string message;  // routine, op or call, and what is wrong
};

std::optional<Violation> verify(const ir::Program& program);

}  // namespace lockstep::ops
