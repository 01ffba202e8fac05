// Launchers bind a process to the processors of one core by default, as if it had one thread.
#pragma once

#include <string>

namespace lockstep::comm::mpi {

// Where this thread may use fewer processors than `threads`, lets it use all that the system grants (its cpuset's), and so the
// threads that it starts from now on. Returns a sentence that says so, or "" where there was nothing to undo or nothing to win.
std::string undo_binding(int threads);

}  // namespace lockstep::comm::mpi
