#include "comm/mpi/session.h"

#include <fmt/format.h>
#include <mpi.h>

#include <cstdlib>

#include "base/error.h"
#include "comm/mpi/binding.h"
#include "comm/mpi/messages.h"

namespace lockstep::comm::mpi {

bool is_built() { return true; }

Session::Session(int threads) : notice_(undo_binding(threads)) {  // before MPI starts threads of its own
    // Open MPI catches SIGSEGV and its kin to print a stack, and can lock up there when the heap is damaged: the job would hang
    // instead of ending. 64 is a signal that nobody raises.
    setenv("OMPI_MCA_opal_signal", "64", 0);
    // Open MPI sends a longer message over TCP only once the receiver has answered, and both look now and then where ranks
    // outnumber cores. Receives are posted ahead, so that a piece of a collective (256 KiB) need not wait: a step of FSDP on 4
    // emulated hosts at 200 Mbit/s took 2.65 s in place of 3.29 s (docs/cluster.md). What the user has set stays.
    setenv("OMPI_MCA_btl_tcp_eager_limit", "300000", 0);
    int provided = MPI_THREAD_SINGLE;
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
    try {
        require_threads(provided);
    } catch (...) {
        MPI_Finalize();
        throw;
    }
}

void require_threads(int provided) {
    if (provided >= MPI_THREAD_MULTIPLE) return;
    throw UserError(
        "mpi.no_threads", "",
        fmt::format("this MPI grants thread level {} of {}, and the threads of ranks call it at the same time; use one "
                    "that was built with MPI_THREAD_MULTIPLE, as Debian's Open MPI is",
                    provided, MPI_THREAD_MULTIPLE));
}

Session::~Session() { MPI_Finalize(); }

std::unique_ptr<processes::Wire> Session::wire() { return make_wire(); }

}  // namespace lockstep::comm::mpi
