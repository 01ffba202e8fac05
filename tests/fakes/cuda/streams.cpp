// CUDA's runtime: streams, events, host functions.
#include <fmt/format.h>

#include <algorithm>

#include "tests/fakes/cuda/machine.h"

namespace lockstep::fakes::cuda {
namespace {

// Of stream priorities. They promise nothing about the order of work, so the fake does nothing with them.
constexpr int kLeastPriority = 0, kGreatestPriority = -5;

Event& event_of(Machine& m, cudaEvent_t handle) { return m.events.at(handle, "event"); }

void create_stream(Machine& m, cudaStream_t* stream, unsigned flags) {
    require(stream != nullptr, cudaErrorInvalidValue, "the address for the stream is null");
    require(flags == cudaStreamDefault || flags == cudaStreamNonBlocking, cudaErrorInvalidValue,
            fmt::format("the flags {:#x} do not exist", flags));
    Device& device = m.device(current_device());
    const int queue = m.order.add_queue();
    device.queues.push_back(queue);
    if (flags == cudaStreamDefault && device.legacy) m.order.wait(queue, device.legacy);
    *stream = m.streams.add({.queue = queue, .device = current_device(), .flags = flags});
    ++m.counts.streams;
}

void create_event(Machine& m, cudaEvent_t* event, unsigned flags) {
    constexpr unsigned kFlags = cudaEventBlockingSync | cudaEventDisableTiming;
    require(event != nullptr, cudaErrorInvalidValue, "the address for the event is null");
    require((flags & ~cudaEventInterprocess & ~kFlags) == 0, cudaErrorInvalidValue, "there are no such flags");
    require((flags & cudaEventInterprocess) == 0, cudaErrorNotSupported, "the fake has no events between processes");
    *event = m.events.add({.device = current_device(), .flags = flags});
    ++m.counts.events;
}

// A query or a wait of the host says nothing of work that is captured, because that does not run.
const Order::Mark& recorded(Machine& m, cudaEvent_t handle) {
    Event& e = event_of(m, handle);
    if (e.capture) {
        if (!e.capture->ended) invalidate(*e.capture, "the host asked for an event that the capture recorded");
        throw Refusal{cudaErrorCapturedEvent, "the event was recorded in a stream that captured"};
    }
    forbid_unsafe_call(m, "the host asks for an event");
    return e.mark;
}

void require_done(Machine& m, const Order::Mark& mark) {
    if (mark && !m.order.done(mark)) throw Refusal{cudaErrorNotReady, ""};
}

// The stream's next node follows what the event's stream had captured when the event was recorded.
void wait_in_capture(Stream& s, const Event& e) {
    require(!e.capture->ended, cudaErrorCapturedEvent, "the event was recorded in a capture that has ended");
    require_valid(*e.capture);
    if (!s.capture) {
        s.capture = e.capture;
        s.lane = e.capture->lanes++;
        s.after = e.after;
        return;
    }
    if (s.capture != e.capture) {
        invalidate(*s.capture, "it was to be merged with another");
        invalidate(*e.capture, "it was to be merged with another");
        throw Refusal{cudaErrorStreamCaptureMerge, "the event belongs to another capture"};
    }
    for (size_t node : e.after) {
        if (std::find(s.after.begin(), s.after.end(), node) == s.after.end()) s.after.push_back(node);
    }
}

void wait_for_event(Machine& m, Stream& s, const Event& e) {
    if (s.capture) require_valid(*s.capture);
    if (e.capture) return wait_in_capture(s, e);
    if (!e.mark) return;  // never recorded: an empty set of work
    if (s.capture) {
        invalidate(*s.capture, "a stream of it was to wait for an event from outside");
        throw Refusal{cudaErrorStreamCaptureIsolation, "the stream captures, the event was recorded outside the capture"};
    }
    m.order.wait(s.queue, e.mark);
}

}  // namespace
}  // namespace lockstep::fakes::cuda

using namespace lockstep::fakes::cuda;

extern "C" {

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
    return call(__func__, [&](Machine& m, Lock&) { create_stream(m, stream, flags); });
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int /*priority*/) {
    return call(__func__, [&](Machine& m, Lock&) { create_stream(m, stream, flags); });
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
    return call(__func__, [&](Machine&, Lock&) {
        if (least) *least = kLeastPriority;
        if (greatest) *greatest = kGreatestPriority;
    });
}

// What the stream was given runs all the same.
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    return call(__func__, [&](Machine& m, Lock&) {
        forbid_capture(m.stream(stream), "a stream of it was destroyed");
        m.streams.remove(stream);
    });
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
    return call(__func__, [&](Machine& m, Lock& lock) {
        Stream& s = m.stream(stream);
        forbid_capture(s, "the host asked for a stream of it");
        forbid_unsafe_call(m, "the host asks for a stream");
        const int queue = s.queue;
        lock.unlock();
        require_done(m, m.order.last(queue));
    });
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    return call(__func__, [&](Machine& m, Lock& lock) {
        Stream& s = m.stream(stream);
        forbid_capture(s, "the host waited for a stream of it");
        forbid_unsafe_call(m, "the host waits for a stream");
        ++m.counts.host_waits;
        const int queue = s.queue;
        lock.unlock();
        await(m, m.order.last(queue));
    });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    return call(__func__, [&](Machine& m, Lock&) {
        Stream& s = m.stream(stream);
        const Event& e = event_of(m, event);
        require(flags != cudaEventWaitExternal, cudaErrorNotSupported, "the fake has no nodes that wait for external events");
        require(flags == cudaEventWaitDefault, cudaErrorInvalidValue, "there are no such flags");
        const bool left_out = m.left_out_wait == 0;
        if (m.left_out_wait >= 0) --m.left_out_wait;
        if (!left_out) wait_for_event(m, s, e);
        ++m.counts.stream_waits;
    });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
    return call(__func__, [&](Machine& m, Lock& lock) {
        require(function != nullptr, cudaErrorInvalidValue, "the function is null");
        issue(m, lock, stream, &Counts::host_functions, plain("a host function", [=] { run_host_function(function, data); }));
    });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
    return call(__func__, [&](Machine& m, Lock&) { create_event(m, event, flags); });
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
    return call(__func__, [&](Machine& m, Lock&) { create_event(m, event, cudaEventDefault); });
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    return call(__func__, [&](Machine& m, Lock&) {
        event_of(m, event);
        m.events.remove(event);
    });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    return call(__func__, [&](Machine& m, Lock& lock) {
        using Clock = std::chrono::steady_clock;
        const Stream& s = m.stream(stream);
        Event& e = event_of(m, event);
        require(e.device == s.device, cudaErrorInvalidResourceHandle, "event and stream are of different devices");
        if (s.capture) {
            require_valid(*s.capture);
            e = {.device = e.device, .flags = e.flags, .mark = nullptr, .time = nullptr, .capture = s.capture, .after = s.after};
            return;
        }
        auto time = std::make_shared<Clock::time_point>();
        const int queue = s.queue;
        lock.unlock();
        Order::Mark mark = m.order.give(queue, [time] { *time = Clock::now(); });
        lock.lock();
        Event& same = event_of(m, event);  // if no other thread has destroyed it meanwhile
        same.mark = std::move(mark), same.time = std::move(time);
        same.capture = nullptr;
    });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    return call(__func__, [&](Machine& m, Lock& lock) {
        const Order::Mark mark = recorded(m, event);
        lock.unlock();
        require_done(m, mark);
    });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    return call(__func__, [&](Machine& m, Lock& lock) {
        const Order::Mark mark = recorded(m, event);
        ++m.counts.host_waits;
        lock.unlock();
        await(m, mark);
    });
}

cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
    return call(__func__, [&](Machine& m, Lock& lock) {
        require(ms != nullptr, cudaErrorInvalidValue, "the address for the time is null");
        for (cudaEvent_t event : {start, end}) {
            require((event_of(m, event).flags & cudaEventDisableTiming) == 0, cudaErrorInvalidResourceHandle,
                    "an event was created with cudaEventDisableTiming");
            require(recorded(m, event) != nullptr, cudaErrorInvalidResourceHandle, "an event was never recorded");
        }
        const Event from = event_of(m, start), to = event_of(m, end);
        require(from.device == to.device, cudaErrorInvalidResourceHandle, "the events are of different devices");
        lock.unlock();
        require_done(m, from.mark);
        require_done(m, to.mark);
        *ms = std::chrono::duration<float, std::milli>(*to.time - *from.time).count();
    });
}

}  // extern "C"
