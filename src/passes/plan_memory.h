// Requires: calls with queues and waits.
// Produces: the offset of every temporary in its routine's scratch, a scratch buffer for every call that needs one, the offset
//   of every buffer in the arena of its place, and the sizes of both arenas. Two buffers share bytes only if the last use of
//   one happens before the first use of the other in every execution (ir/happens_before). Renames become views; ops marked
//   in_place write where they read. Entries share the resident buffers and overlay their transient ones.
// Leaves alone: order, queues and waits.
#pragma once

#include "ir/program.h"

namespace lockstep::passes {

ir::Program plan_memory(ir::Program program);
// The same without offsets of buffers. The device's arena is then the least that any offsets need:
// the most bytes in use at once.
ir::Program size_memory(ir::Program program);
// The offsets that plan_memory gives, for a program of size_memory.
ir::Program place_buffers(ir::Program program);

// The largest sum of bytes of the device's memory in use at once along the order of events, resident ones included; a buffer
// counts as in use as long as some execution may still touch it.
int64_t live_bytes(const ir::Program& program, const ir::Entry& entry);

}  // namespace lockstep::passes
