#include "base/error.h"
#include "comm/mpi/session.h"

namespace lockstep::comm::mpi {

bool is_built() { return false; }
std::string library() { return {}; }
void require_threads(int) {}

Session::Session(int) {
    throw UserError("mpi.not_built", "",
                    "this lockstep was built without MPI and runs in one process only: install MPI (Debian: libopenmpi-dev, "
                    "openmpi-bin) and build again, or start it without a launcher; ranks are then threads");
}

Session::~Session() = default;
std::unique_ptr<processes::Wire> Session::wire() { return nullptr; }

}  // namespace lockstep::comm::mpi
