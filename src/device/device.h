// A rank's memory and queues, whatever they are made of. Host code reaches the memory only through read() and write(): the
// addresses that it holds are those of kernels, copies and collectives. On the host device the memory is the process's own and
// work happens when it is given; on others the host runs ahead of the queues.
// Giving work to a queue, reading and writing may be done by several threads, each on queues of its own.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/error.h"
#include "base/function_ref.h"
#include "device/queue.h"

namespace lockstep::device {

// A moment in a queue: when all that was given to it before the event was recorded has happened. Valid on all devices of a
// machine. One that was never recorded has happened.
enum class Event : int {};

// Work that was recorded, to be given again as it is.
class Graph {
public:
    virtual ~Graph() = default;
};

class Device {
public:
    virtual ~Device() = default;

    // Whether work happens on the thread that gives it, before the call returns.
    virtual bool is_host() const = 0;

    // Zero, and nullptr where the system refuses. Before the first step; freed with the device or later.
    virtual char* allocate(int64_t bytes, Place place) = 0;
    virtual Queue& queue(QueueName name) = 0;

    // timed: time_s() may be asked for.
    virtual Event new_event(bool timed = false) = 0;
    virtual void record(Queue& queue, Event event) = 0;
    // What is given to the queue from now on happens after the event, as it was recorded last.
    virtual void wait(Queue& queue, Event event) = 0;
    virtual bool done(Event event) = 0;
    // When an event that is done happened, in seconds of std::chrono::steady_clock.
    virtual double time_s(Event event) = 0;

    // Between two places of the device, or between the device and memory of Place::Host.
    virtual void copy(Queue& queue, void* to, const void* from, int64_t bytes) = 0;
    virtual void fill(Queue& queue, void* to, int byte, int64_t bytes) = 0;
    // Work that uses the memory, in the order of the queue: work(the addresses as it may use them). Where kernels are the
    // host's, it is what they do; elsewhere it gives kernels to queue.handle(), before this returns.
    using Work = std::function<void(void* const* addresses)>;
    virtual void launch(Queue& queue, std::span<void* const> addresses, Work work) = 0;
    // Code of the host that uses no memory of the device, in the order of the queue. On a thread of the device's choice.
    virtual void call(Queue& queue, std::function<void()> code) = 0;
    // Adds one, in the order of the queue. The counter lies in memory of Place::Host.
    virtual void count(Queue& queue, std::atomic<uint64_t>* counter) = 0;
    // Returns when all that was given to the queue has happened; when the event has.
    virtual void finish(Queue& queue) = 0;
    virtual void finish(Event event) = 0;

    // What `give` gives to the queue, and to others that it makes wait for it and that it waits for again, is recorded and does
    // not happen. Events that `give` does not record may not be waited for in it, and host code has no part in it.
    virtual std::unique_ptr<Graph> capture(Queue& queue, FunctionRef<void()> give);
    virtual void replay(Queue& queue, const Graph& graph);

    // f(memory of the host that holds these bytes), after what was given to the queue. At most kAccessBytes.
    virtual void read(Queue& queue, const void* from, int64_t bytes, FunctionRef<void(const char*)> f) = 0;
    // f(memory of the host), which fills all of these bytes. They are there for what is given to the queue from now on.
    virtual void write(Queue& queue, void* to, int64_t bytes, FunctionRef<void(char*)> f) = 0;
};

inline std::unique_ptr<Graph> Device::capture(Queue&, FunctionRef<void()>) { throw InternalError("device: it records nothing"); }
inline void Device::replay(Queue&, const Graph&) { throw InternalError("device: it records nothing"); }

inline constexpr int64_t kAccessBytes = 4 << 20;

// f(offset, bytes), in pieces of at most kAccessBytes.
template <class F>
void each_access(int64_t bytes, const F& f) {
    for (int64_t at = 0; at < bytes; at += kAccessBytes) f(at, std::min(kAccessBytes, bytes - at));
}

struct DeviceOptions {
    int threads = 1;        // that share the work of a kernel of the host in the compute queue; elsewhere one does it
    std::vector<int> cpus;  // to pin them to; empty: not pinned
};

// Makes the devices of the ranks of this process; outlives them.
class Machine {
public:
    virtual ~Machine() = default;
    virtual bool is_host() const = 0;
    // On the thread of the rank, so that its memory lies near it.
    virtual std::unique_ptr<Device> device(const DeviceOptions& options) = 0;
};

std::unique_ptr<Machine> host_machine();

}  // namespace lockstep::device
