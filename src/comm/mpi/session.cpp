#include "comm/mpi/session.h"

#include <fmt/format.h>
#include <mpi.h>

#include "base/error.h"
#include "comm/mpi/binding.h"
#include "comm/mpi/messages.h"

namespace lockstep::comm::mpi {

bool is_built() { return true; }

std::string library() {
    char text[MPI_MAX_LIBRARY_VERSION_STRING];
    int length = 0;
    MPI_Get_library_version(text, &length);
    const std::string_view all(text, static_cast<size_t>(length));
    return std::string(all.substr(0, all.find_first_of(",\n")));  // without who packaged it
}

Session::Session(int threads) : notice_(undo_binding(threads)) {  // before MPI starts threads of its own
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
        fmt::format("this MPI grants thread level {}, but several ranks of a process call it at the same time, which needs "
                    "level {}: use an MPI that was built with MPI_THREAD_MULTIPLE, such as Debian's Open MPI",
                    provided, MPI_THREAD_MULTIPLE));
}

Session::~Session() { MPI_Finalize(); }

std::unique_ptr<processes::Wire> Session::wire() { return make_wire(); }

}  // namespace lockstep::comm::mpi
