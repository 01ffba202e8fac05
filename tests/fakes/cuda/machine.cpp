#include "tests/fakes/cuda/machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <functional>
#include <utility>

namespace lockstep::fakes::cuda {
namespace {

struct Current {
    std::unique_ptr<Machine> machine = std::make_unique<Machine>(0);
    std::atomic<uint64_t> number = 0;  // of machines before this
    std::atomic<cudaError_t> failure = cudaSuccess;
    std::mutex mutex;  // guards what follows
    std::string failure_why, refusal;
};

// Never destroyed: other objects of static storage may make calls when they are.
Current& current() {
    static Current& the_current = *new Current;
    return the_current;
}

struct Thread {
    uint64_t machine = 0;  // whose state this is
    cudaError_t error = cudaSuccess;
    int device = 0;
    cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;
};

thread_local bool in_host_function = false;

Thread& this_thread() {
    static thread_local Thread thread;
    const uint64_t number = current().number;
    if (thread.machine != number) thread = {.machine = number};
    return thread;
}

// A driver serves the runtime of its own major version and of earlier ones.
void require_device(const Machine& m) {
    require(m.driver.has_value(), cudaErrorInsufficientDriver, "no driver is installed");
    if (*m.driver / 1000 < CUDART_VERSION / 1000)
        throw Refusal{cudaErrorInsufficientDriver,
                      fmt::format("the driver supports CUDA {}, this runtime is {}", *m.driver, CUDART_VERSION)};
    require(m.device_count > 0, cudaErrorNoDevice, "there is no device");
}

void require_no_failure() {
    Current& c = current();
    if (c.failure == cudaSuccess) return;
    const std::lock_guard lock(c.mutex);
    throw Refusal{c.failure, c.failure_why};
}

}  // namespace

Machine::Machine(uint64_t seed) : order(seed), random(seed) {}

Stream& Machine::stream(cudaStream_t handle) {
    require(handle != nullptr && handle != cudaStreamLegacy && handle != cudaStreamPerThread, cudaErrorInvalidResourceHandle,
            "this is a default stream (0, cudaStreamLegacy or cudaStreamPerThread); the fake wants a stream of your own");
    return streams.at(handle, "stream");
}

size_t Machine::free_bytes(int number) {
    const auto limit = static_cast<size_t>(std::min(properties.memory_bytes, memory_limit_bytes));
    return limit - std::min(limit, device(number).allocated_bytes);
}

Device& Machine::device(int number) {
    const auto [it, is_new] = devices.try_emplace(number);
    Device& d = it->second;
    if (is_new) {
        d.legacy_queue = order.add_queue();
        d.release_queue = order.add_queue();
        d.queues = {d.legacy_queue};
    }
    return d;
}

const Allocation* Machine::allocation(const void* address, size_t bytes) const {
    const auto* first = static_cast<const char*>(address);
    auto it = allocations.upper_bound(first);
    if (it == allocations.begin()) return nullptr;
    const auto& [base, found] = *--it;
    const auto offset = static_cast<size_t>(first - base);
    if (offset >= found.bytes) return nullptr;
    if (bytes > found.bytes - offset)
        throw Refusal{cudaErrorInvalidValue,
                      fmt::format("{} bytes at offset {} leave their allocation of {} bytes", bytes, offset, found.bytes)};
    return &found;
}

Machine& machine() { return *current().machine; }

std::string unusable(const void* address, size_t bytes, int device, bool pinned_is_usable) {
    Machine& m = machine();
    const Lock lock(m.mutex);
    try {
        const Allocation* a = m.allocation(address, bytes);
        if (!a || (a->type != cudaMemoryTypeDevice && !pinned_is_usable)) return "this is no memory of a device";
        return a->type == cudaMemoryTypeDevice && a->device != device ? "this is memory of another device" : "";
    } catch (const Refusal& refusal) {
        return refusal.why;
    }
}

cudaError_t call(const char* name, FunctionRef<void(Machine&, Lock&)> body) {
    try {
        require(!in_host_function, cudaErrorNotPermitted, "a host function must not make calls of CUDA");
        require_no_failure();
        Machine& m = machine();
        {
            Lock lock(m.mutex);
            require_device(m);
            body(m, lock);
        }
        require_no_failure();  // what the call waited for, or what ran meanwhile
        return cudaSuccess;
    } catch (const Refusal& refusal) {
        if (!refusal.why.empty()) set_refusal(fmt::format("{}: {}", name, refusal.why));
        return this_thread().error = refusal.code;
    }
}

void set_refusal(const std::string& text) {
    const std::lock_guard lock(current().mutex);
    current().refusal = text;
}

bool has_failed() { return current().failure != cudaSuccess; }

void fail_device(cudaError_t code, const std::string& why) {
    Current& c = current();
    const std::lock_guard lock(c.mutex);
    if (c.failure != cudaSuccess) return;
    c.failure_why = why;
    c.failure = code;
}

void run_host_function(cudaHostFn_t function, void* data) {
    in_host_function = true;
    function(data);
    in_host_function = false;
}

int current_device() { return this_thread().device; }
void set_current_device(int device) { this_thread().device = device; }

cudaStreamCaptureMode exchange_capture_mode(cudaStreamCaptureMode mode) {
    return std::exchange(this_thread().capture_mode, mode);
}

cudaError_t last_error(bool clears) {
    if (const cudaError_t failure = current().failure; failure != cudaSuccess) return failure;
    return clears ? std::exchange(this_thread().error, cudaSuccess) : this_thread().error;
}

void issue(Machine& m, Lock& lock, cudaStream_t handle, int64_t Counts::*counter, Issue what) {
    Stream& stream = m.stream(handle);
    if (stream.capture) require_valid(*stream.capture);
    ++(m.counts.*counter);
    if (!stream.capture) {
        const int queue = stream.queue;
        lock.unlock();
        return what(queue);
    }
    std::vector<Node>& nodes = stream.capture->nodes;
    nodes.push_back({std::move(what), stream.lane, std::move(stream.after)});
    stream.after = {nodes.size() - 1};
}

void require_current_device(Machine& m, cudaStream_t handle) {
    const int device = m.stream(handle).device;
    if (device != current_device())
        throw Refusal{cudaErrorInvalidResourceHandle,
                      fmt::format("the stream is of device {}, the current device is {}", device, current_device())};
}

Order::Work guarded(const std::string& name, std::function<void()> work) {
    return [name, work = std::move(work)] {
        if (current().failure != cudaSuccess) return;
        try {
            work();
        } catch (const std::exception& e) {
            fail_device(cudaErrorLaunchFailure, fmt::format("{} failed on the device: {}", name, e.what()));
        }
    };
}

Issue plain(const std::string& name, std::function<void()> work) {
    return [work = guarded(name, std::move(work))](int queue) { machine().order.give(queue, work); };
}

void await(Machine& m, const Order::Mark& mark) {
    if (mark && !m.order.run_until(mark))
        fail_device(cudaErrorLaunchTimeout, "the host waits for what can never run: " + m.order.unkept());
}

void reset(uint64_t seed) {
    Current& c = current();
    c.machine = std::make_unique<Machine>(seed);
    ++c.number;
    c.failure = cudaSuccess;
    c.failure_why.clear(), c.refusal.clear();
}

cudaError_t enqueue(cudaStream_t stream, const std::string& name, std::function<void()> work) {
    return call(__func__, [&](Machine& m, Lock& lock) {
        require_current_device(m, stream);
        issue(m, lock, stream, &Counts::launches, plain(name, std::move(work)));
    });
}

std::string refusal() {
    const std::lock_guard lock(current().mutex);
    return current().refusal;
}

Counts counts() {
    const Lock lock(machine().mutex);
    return machine().counts;
}

void leave_out_wait(int64_t n) { machine().left_out_wait = n; }
void leave_out_value_wait(int64_t n) { machine().left_out_value_wait = n; }
void leave_out_word(int64_t n) { machine().left_out_word = n; }
void set_ipc(bool works) { machine().has_ipc = works; }
void set_value_waits_recorded(bool works) { machine().records_value_waits = works; }
void set_driver(std::optional<int> version) { machine().driver = version; }
void set_device_count(int count) { machine().device_count = count; }
void set_device_properties(const DeviceProperties& properties) { machine().properties = properties; }
void set_epilogue_without_algorithm(uint32_t epilogue) { machine().epilogue_without_algorithm = epilogue; }
void set_first_algorithm_us(int64_t us) { machine().first_algorithm_us = us; }
void set_memory_limit(int64_t bytes) { machine().memory_limit_bytes = bytes; }
void set_pinned_limit(int64_t bytes) { machine().pinned_limit_bytes = bytes; }
void allow_ranks_per_device(int count) { machine().ranks_per_device = count; }
void set_patience(std::chrono::milliseconds patience) { machine().order.set_patience(patience); }

}  // namespace lockstep::fakes::cuda
