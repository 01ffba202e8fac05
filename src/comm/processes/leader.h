// What the first member of a group in a process does for all of its members there: finds out whether every process launched the
// same, then moves each request's data. Also how a rank waits for messages.
#pragma once

#include "comm/processes/state.h"

namespace lockstep::comm::processes {

// The job is stopping; who gets this unwinds to where Control::throw_aborted() is called.
struct Stopped {};

// Held while receiving messages or reading the buffers of others, so that a stop waits for it.
class ActiveGuard {
public:
    explicit ActiveGuard(Control& control) : control_(control) {
        if (!control.enter()) throw Stopped();
    }
    ~ActiveGuard() { control_.leave(); }
    ActiveGuard(const ActiveGuard&) = delete;
    ActiveGuard& operator=(const ActiveGuard&) = delete;

private:
    Control& control_;
};

// The pause between two looks at what is in flight; it grows. Throws Stopped.
class Backoff {
public:
    explicit Backoff(const Control& control) : control_(control) {}
    void reset() { looks_ = 0; }
    void wait();

private:
    const Control& control_;
    int looks_ = 0;
};

void wait_for(const Control& control, std::span<Message> messages);

// Requires: the members here have passed `start`. After it the leader's outs hold the results that are the same for all members
// (CollectiveTraits::same_result), and all members' outs here those of the other collectives. Throws Stopped; another exception
// is the wire's.
void lead(State& state, Group& group, int channel);

// The header of a launch of sends. read_header is false for that of another kind of launch.
void write_header(Requests sends, std::vector<std::byte>& header);
bool read_header(std::span<const std::byte> header, std::vector<Request>& sends);
int64_t header_capacity(int members);  // bytes that the header of any launch fits in

inline int tag_of(const Group& group, int channel) { return group.number * kChannels + channel; }

}  // namespace lockstep::comm::processes
