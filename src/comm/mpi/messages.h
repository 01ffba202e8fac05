// MPI's messages as a Wire.
#pragma once

#include <memory>

#include "comm/processes/wire.h"

namespace lockstep::comm::mpi {

// After MPI_Init_thread. Collective.
std::unique_ptr<processes::Wire> make_wire();

}  // namespace lockstep::comm::mpi
