// MPI in this process: started, and its messages as a Wire (comm/processes). MPI's own header is included in the .cpp files of
// this folder only; a build without MPI has not_built.cpp in their place. Of MPI the transport uses sends, receives, tests of
// them and probes, from several threads at a time (MPI_THREAD_MULTIPLE): Open MPI 4.1's collectives use two to five times the
// bytes of a ring over hosts, and none can be stopped.
#pragma once

#include <memory>
#include <string>

#include "comm/processes/wire.h"

namespace lockstep::comm::mpi {

bool is_built();
// "Open MPI v4.1.4"; empty in a build without MPI. May be called before MPI is started.
std::string library();

// `provided` is MPI's thread level. Throws UserError mpi.no_threads.
void require_threads(int provided);

// Once in a process, on its main thread; outlives all transports.
class Session {
public:
    // `threads`: that will run here. Errors: UserError mpi.not_built, mpi.no_threads.
    explicit Session(int threads);
    ~Session();
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;

    // A wire of its own messages. Every process calls this equally often, and waits here for the others.
    std::unique_ptr<processes::Wire> wire();

    // What the launcher did that has been undone, for the user to read; else "".
    const std::string& notice() const { return notice_; }

private:
    std::string notice_;
};

}  // namespace lockstep::comm::mpi
