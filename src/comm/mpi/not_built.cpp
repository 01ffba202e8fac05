#include "base/error.h"
#include "comm/mpi/session.h"

namespace lockstep::comm::mpi {

bool is_built() { return false; }
std::string library() { return {}; }
void require_threads(int) {}

Session::Session(int) {
    throw UserError("mpi.not_built", "",
                    "this lockstep was built without MPI, so that it cannot be one of several processes; install MPI (Debian: "
                    "libopenmpi-dev, openmpi-bin), build again, or start it without a launcher: ranks are threads then");
}

Session::~Session() = default;
std::unique_ptr<processes::Wire> Session::wire() { return nullptr; }

}  // namespace lockstep::comm::mpi
