// Whether the processes of a job are alive, by messages of its own and a thread that does nothing else. Every process reports
// to the first one, and the first one to every other. A process that was stopped, has died or is cut off falls silent. All
// processes that still receive messages learn which one was silent for too long, and why the job ends.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/process_group.h"
#include "comm/processes/wire.h"

namespace lockstep::comm {

class Heartbeat {
public:
    // Every process makes one, and waits here for the others. After that one thread uses it.
    // In a single process it does nothing.
    Heartbeat(ProcessGroup& group, double timeout_s);

    // Called several times per timeout. Sends `state` and a count that grows while this process makes progress, and receives
    // those of the others. passed_s: seconds since the last call, fewer if this process itself was stopped.
    void beat(const std::string& state, uint64_t count, double passed_s);
    // A process that was silent for the timeout; -1: none. The others know only of the first one.
    int silent() const { return silent_; }
    // What each process has said last, by process; known to the first one.
    const std::vector<std::string>& states() const { return states_; }
    // The sum of all counts; it stays the same while no process makes progress. Known to the first process.
    uint64_t count() const;

    // Tells all that the job ends, and why. Not waited for.
    void tell_end(const std::string& reason);
    // The reason that somebody has given; empty: nobody.
    const std::string& end() const { return end_; }

    // Announces that this process ends, so that its silence is expected. The first process ends last.
    // True once this one may end.
    bool leave();

private:
    enum Kind : char { kBeat = 'b', kEnd = 'e', kLeave = 'l' };
    void hear();
    void post(int to, Kind kind, const std::string& body);

    ProcessGroup& group_;
    const double timeout_s_;
    std::unique_ptr<processes::Wire> wire_;
    // By process:
    std::vector<double> silent_s_;
    std::vector<uint64_t> counts_;
    std::vector<bool> left_;
    std::vector<std::string> states_;
    int silent_ = -1;
    std::string end_;
    bool leaving_ = false;
};

}  // namespace lockstep::comm
