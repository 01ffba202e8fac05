// Ranks that have a process and a GPU each, and whose GPUs write to each other's memory (memory.h): collectives whose requests say
// so (Request::by_peers) go by copy engines, which take no processors of a GPU; all others go by another transport.
//
// A member tells another by a word in that one's page that it may write (`ready`), and after a copy that it has written (`full`).
// Both are copies of a word, in the order of the queue. The owner's queue waits for the word and sets it back to 0, so a step that
// was recorded as a graph finds the words as it left them. Where the members run one program, their buffers are at the same
// offsets of their arenas, and a member writes straight to another's buffer. Others, such as the two sides of a pipeline's send,
// write to the room of the page, a chunk after the other, and the owner copies it from there. Sums are made by kernels at the
// owner, in ascending position, of what others wrote to the room: the bits of every other transport.
#pragma once

#include <memory>

#include "comm/exchange.h"
#include "comm/moves.h"
#include "comm/process_group.h"
#include "comm/transport.h"

namespace lockstep::comm::peer {

// `others`: of one rank a process. The rest outlives the transport. Every process makes it at the same time, and why_not() of
// memory.h was empty.
std::unique_ptr<Transport> transport(ProcessGroup& group, std::unique_ptr<Transport> others, const Moves& moves,
                                     const ExchangeOptions& options = {});

}  // namespace lockstep::comm::peer
