// How this process was started: by itself, or by a launcher (mpirun, srun) as one of several.
#pragma once

#include <string>
#include <vector>

#include "base/function_ref.h"
#include "comm/process_group.h"

namespace lockstep::cli {

struct Launched {
    int process = 0, processes = 1, on_this_host = 1;
};
// By what the launcher has put into the environment.
Launched launched();

// f(group) with the process group of all processes, which must be of one build and run the same `command`; MPI runs around it
// where there are several, and only the first one speaks. Where f fails on one, all are stopped, and failed() says what became
// of it, and with which code, before any process ends: a launcher kills those that are left. Alone, and before there is a
// process group, errors are thrown: UserError mpi.not_built, mpi.no_threads.
int in_process_group(const std::string& command, FunctionRef<int(comm::ProcessGroup&)> f, FunctionRef<int()> failed);

}  // namespace lockstep::cli
