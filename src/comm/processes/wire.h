// Messages between the processes of a job: all that this transport asks of MPI. MPI's is in comm/mpi; the tests have one within
// a process, so that the sanitizers see the rest.
// Messages from one process to another with the same tag arrive in the order in which they were sent. Calls come from several
// threads at a time. Where a message cannot be sent or does not fit what was posted for it: std::runtime_error.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::comm::processes {

class Wire {
public:
    virtual ~Wire() = default;

    virtual int process() const = 0;
    virtual int processes() const = 0;
    virtual int host_of(int process) const = 0;  // numbered in any way
    virtual int most_tag() const = 0;            // tags are 0 .. most_tag()

    // A message under way. Its buffer is in use until done() or drop().
    struct Ticket {
        uint64_t handle = 0;
        bool receives = false;
    };
    virtual Ticket send(int to, int tag, const void* data, int64_t bytes) = 0;
    virtual Ticket receive(int from, int tag, void* data, int64_t capacity_bytes) = 0;
    // Whether the message has left or arrived; then the ticket is void. Never waits.
    virtual bool done(Ticket& ticket) = 0;
    // Ends a receive, without its message or, where that is on its way already, after it. Of a send nothing more is heard: its
    // buffer stays in use until no process receives.
    virtual void drop(Ticket ticket) = 0;

    // Control messages: small, copied, in order from one process to another. From one thread only. poll() also moves on all
    // other messages under way.
    virtual void post(int to, std::string message) = 0;
    virtual bool poll(int& from, std::string& message) = 0;
};

// A message under way that drops itself.
class Message {
public:
    Message() = default;
    Message(Wire& wire, Wire::Ticket ticket) : wire_(&wire), ticket_(ticket) {}
    Message(Message&& other) noexcept : wire_(std::exchange(other.wire_, nullptr)), ticket_(other.ticket_) {}
    Message& operator=(Message&& other) noexcept {
        std::swap(wire_, other.wire_), std::swap(ticket_, other.ticket_);
        return *this;
    }
    ~Message() {
        if (wire_) wire_->drop(ticket_);
    }
    // True of no message.
    bool done() {
        if (wire_ && wire_->done(ticket_)) wire_ = nullptr;
        return !wire_;
    }

private:
    Wire* wire_ = nullptr;
    Wire::Ticket ticket_;
};

}  // namespace lockstep::comm::processes
