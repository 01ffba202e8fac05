// What the tests under mpirun share.
#pragma once

#include "comm/mpi/session.h"

namespace lockstep::comm::test {

mpi::Session& session();  // of this process; main() has made it

}  // namespace lockstep::comm::test
