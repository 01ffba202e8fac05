// Whether the processes of a job live, told out of band: over messages of its own, by a thread that does nothing else.
// Each tells the first process, the first tells each; so a process that was stopped, has died or is cut off falls silent. Who
// falls silent for too long, and why the job is to end, reaches all that still hear.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/process_group.h"
#include "comm/processes/wire.h"

namespace lockstep::comm {

class Heartbeat {
public:
    // Every process makes one, and waits here for the others. From then on of one thread. Alone it does nothing.
    Heartbeat(ProcessGroup& group, double timeout_s);

    // Once in a while, several times a timeout: tells `state`, and a count that grows while this process goes on, and hears the
    // others. passed_s: since the last time; less than that has passed where this process itself was stopped.
    void beat(const std::string& state, uint64_t count, double passed_s);
    // A process that was silent for the timeout; -1: none. The others know only of the first one.
    int silent() const { return silent_; }
    // What each process has told last, by process; known to the first one.
    const std::vector<std::string>& states() const { return states_; }
    // The sum of all counts: it stands when no process goes on. Known to the first one.
    uint64_t count() const;

    // Tells all that the job ends, and why. Not waited for.
    void tell_end(const std::string& reason);
    // What somebody has told so; empty: nobody.
    const std::string& end() const { return end_; }

    // This process goes; whoever hears it no longer does not wonder. The first one goes last: true when it may.
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
