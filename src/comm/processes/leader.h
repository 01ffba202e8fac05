// What the first member of a group in a process does for all of its members there: finds out whether every process launched the
// same, then moves each request's data. Also how a rank waits for messages.
#pragma once

#include "comm/processes/state.h"

namespace lockstep::comm::processes {

// The job is stopping; who gets this unwinds to where Control::throw_aborted() is called.
struct Stopped {};

// Held by whoever receives messages or reads the buffers of others.
class Inside {
public:
    explicit Inside(Control& control) : control_(control) {
        if (!control.enter()) throw Stopped();
    }
    ~Inside() { control_.leave(); }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;

private:
    Control& control_;
};

// Between two looks at what is under way. Throws Stopped.
class Patience {
public:
    explicit Patience(const Control& control) : control_(control) {}
    void reset() { looks_ = 0; }
    void wait();

private:
    const Control& control_;
    int looks_ = 0;
};

void wait_for(const Control& control, std::span<Message> messages);

// Requires: the members here have passed `start`. After it the leader's outs hold everything of all_gather and all_reduce, all
// members' outs here that of reduce_scatter and permute. Throws Stopped; another exception is the wire's.
void lead(State& state, Group& group, int channel);

// The header of a launch of transfers. read_header is false for that of another kind of launch.
void write_header(Requests transfers, std::vector<std::byte>& header);
bool read_header(std::span<const std::byte> header, std::vector<Request>& transfers);
int64_t header_capacity(int members);  // bytes that the header of any launch fits in

inline int tag_of(const Group& group, int channel) { return group.number * kChannels + channel; }

}  // namespace lockstep::comm::processes
