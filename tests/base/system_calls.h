// Sees every pwrite, fsync and rename of the test program while one of these exists, and can make one of them fail or end the
// process there: what a full disk and a crash do. The calls are the program's own, so no tracer is needed.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace lockstep::testing {

class SystemCalls {
public:
    SystemCalls();
    ~SystemCalls();
    SystemCalls(const SystemCalls&) = delete;
    SystemCalls& operator=(const SystemCalls&) = delete;

    // "write manifest.json", "fsync step-00000001.partial", "rename step-00000001": last parts of the paths; of a rename the new
    // one.
    std::vector<std::string> log() const;
    // Calls are counted from 0. 0: nothing. The call then returns -1 with this errno.
    void fail_from(int call, int error);
    void kill_at(int call);
};

// Runs f in a child process, where it may be killed. False where it was.
bool survives(const std::function<void()>& f);

}  // namespace lockstep::testing
