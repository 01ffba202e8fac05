// Collectives among ranks that share a GPU, by its kernels: what comm/queued.h asks for.
#pragma once

#include "comm/moves.h"

namespace lockstep::comm::gpu {

const Moves& moves();

}  // namespace lockstep::comm::gpu
