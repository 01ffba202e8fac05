// What the fakes of this folder share: devices, their memory, streams, captures and graphs, and how a call is admitted or
// refused. No work runs while the machine's lock is held.
#pragma once

#include <chrono>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/function_ref.h"
#include "tests/fakes/cuda/fake.h"
#include "tests/fakes/cuda/order.h"

namespace lockstep::fakes::cuda {

// Ends a call: it returns `code`. Without `why` the call is not refused; its answer is merely not cudaSuccess.
struct Refusal {
    cudaError_t code;
    std::string why;
};

inline void require(bool holds, cudaError_t code, std::string_view why) {
    if (!holds) throw Refusal{code, std::string(why)};
}

// Gives work to a queue of the machine's order: at once, or whenever a graph that has captured it is launched.
using Issue = std::function<void(int queue)>;

struct Node {
    Issue issue;
    int lane;                   // nodes of a stream that captured are of one lane, and run in their order
    std::vector<size_t> after;  // earlier nodes
};

struct Capture {
    cudaStream_t origin;
    std::thread::id thread;
    cudaStreamCaptureMode mode;
    std::vector<Node> nodes = {};
    int lanes = 0;
    std::string invalid = {};  // why; empty: it is valid
    bool ended = false;
};

struct Stream {
    int queue;
    int device;
    unsigned flags;
    std::shared_ptr<Capture> capture = nullptr;  // null: the stream does not capture
    int lane = 0;                                // of the capture
    std::vector<size_t> after = {};              // nodes that the stream's next node follows
};

struct Event {
    int device;
    unsigned flags;
    Order::Mark mark = nullptr;  // null: nothing was recorded, or in a capture
    std::shared_ptr<std::chrono::steady_clock::time_point> time = nullptr;
    std::shared_ptr<Capture> capture = nullptr;  // that the event was recorded in last
    std::vector<size_t> after = {};              // the nodes that the event stands for then
};

struct Graph {
    std::vector<Node> nodes;
    int lanes;
};

struct ExecutableGraph {
    std::shared_ptr<const Graph> graph;
    std::vector<int> queues = {};  // of each lane
    Order::Mark end = nullptr;     // of the last launch
};

struct Allocation {
    std::shared_ptr<char> memory;
    size_t bytes;
    cudaMemoryType type;  // device or host (pinned)
    int device;
    bool mapped = false;
    std::thread::id thread = std::this_thread::get_id();  // that allocated it, or opened it
    const char* exported = nullptr;                       // of what was opened: the allocation
    int opened = 0;                                       // by how many it is now
};

struct Device {
    int legacy_queue;         // of the legacy default stream, for the calls that use it by themselves
    int release_queue;        // memory that is free is released there
    std::vector<int> queues;  // of all streams that there ever were, and legacy_queue
    Order::Mark legacy;       // what was given to legacy_queue last
    size_t allocated_bytes = 0;
};

// Things that the host names by opaque handles. A handle is never used twice.
template <class Handle, class T>
class Table {
public:
    Handle add(T thing) {
        const auto handle = reinterpret_cast<Handle>(next_ += 16);
        things_.emplace(handle, std::move(thing));
        return handle;
    }
    T& at(Handle handle, std::string_view kind) {
        const auto it = things_.find(handle);
        if (it == things_.end())
            throw Refusal{cudaErrorInvalidResourceHandle, "there is no " + std::string(kind) + " of this handle, or no longer"};
        return it->second;
    }
    void remove(Handle handle) { things_.erase(handle); }
    auto begin() { return things_.begin(); }
    auto end() { return things_.end(); }

private:
    static inline uintptr_t next_ = 0x10000;
    std::map<Handle, T> things_;
};

class Communicators;  // of NCCL

struct Machine {
    explicit Machine(uint64_t seed);

    Stream& stream(cudaStream_t handle);
    Device& device(int number);
    size_t free_bytes(int number);  // of a device
    // The allocation that holds these bytes; null: none holds the first of them. Refuses if they leave it.
    const Allocation* allocation(const void* address, size_t bytes) const;

    std::mutex mutex;  // guards what follows but `order`
    Order order;
    std::mt19937_64 random;
    Counts counts;
    std::optional<int> driver = CUDART_VERSION;
    DeviceProperties properties;
    int64_t memory_limit_bytes = int64_t{4} << 30;
    uint32_t epilogue_without_algorithm = 0;  // of cuBLASLt; 0: none
    int64_t first_algorithm_us = 0;
    int64_t pinned_limit_bytes = std::numeric_limits<int64_t>::max(), pinned_bytes = 0;
    int device_count = 1;
    int ranks_per_device = 1;
    int64_t left_out_wait = -1, left_out_value_wait = -1, left_out_word = -1;
    bool has_ipc = true, records_value_waits = true;
    std::map<int, Device> devices;  // that were used
    std::map<const char*, Allocation> allocations;
    Table<cudaStream_t, Stream> streams;
    Table<cudaEvent_t, Event> events;
    Table<cudaGraph_t, std::shared_ptr<const Graph>> graphs;
    Table<cudaGraphExec_t, ExecutableGraph> executable_graphs;
    std::vector<std::shared_ptr<Capture>> captures;  // that have not ended
    std::shared_ptr<Communicators> communicators;    // null: none was made
};

using Lock = std::unique_lock<std::mutex>;

Machine& machine();

bool has_failed();

// Memory of a device, which may be mapped a second time.
std::shared_ptr<char> new_device_memory(size_t bytes);
std::shared_ptr<char> mapped_again(const Allocation& allocation);

// What keeps work of a device from using these bytes; empty: nothing.
std::string unusable(const void* address, size_t bytes, int device, bool pinned_is_usable);

// Runs the body of a call of CUDA's runtime, with the lock held, unless there is a reason to refuse any call.
cudaError_t call(const char* name, FunctionRef<void(Machine&, Lock&)> body);
// The device has failed: pieces that have not run do nothing, and all calls return this error.
void fail_device(cudaError_t code, const std::string& why);
void set_refusal(const std::string& text);
// Marks the work of a host function, which may not make calls.
void run_host_function(cudaHostFn_t function, void* data);

int current_device();
void set_current_device(int device);
cudaStreamCaptureMode exchange_capture_mode(cudaStreamCaptureMode mode);
cudaError_t last_error(bool clears);

// Gives a stream something to issue, or lets its capture have it as a node, and counts it. It may unlock.
void issue(Machine& m, Lock& lock, cudaStream_t stream, int64_t Counts::*counter, Issue what);
// Work that is left out if the device has failed, and fails it if it throws; then `name` is said.
Order::Work guarded(const std::string& name, std::function<void()> work);
Issue plain(const std::string& name, std::function<void()> work);
// A kernel needs a stream of the current device.
void require_current_device(Machine& m, cudaStream_t stream);
// The host waits. The lock is not held. Null is no wait.
void await(Machine& m, const Order::Mark& mark);

// Captures. A call that a capture forbids makes it invalid.
void invalidate(Capture& capture, std::string_view why);
void require_valid(const Capture& capture);
void forbid_capture(const Stream& stream, std::string_view why);
// For calls that are potentially unsafe during captures, see cudaThreadExchangeStreamCaptureMode.
void forbid_unsafe_call(Machine& m, std::string_view why);

}  // namespace lockstep::fakes::cuda
