#include "device/gpu/gpu.h"

#include <fmt/format.h>

#include <chrono>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <vector>

#include "base/error.h"
#include "device/gpu/words.h"
#include "device/staged.h"

namespace lockstep::device::gpu {
namespace {

using Clock = std::chrono::steady_clock;

// Of what is destroyed: a device that has failed has said so before.
void unchecked(cudaError_t) {}
// So that the next call does not say it again; what is fatal stays.
void forget_error() { unchecked(cudaGetLastError()); }

void check(cudaError_t error, const char* call) {
    if (error == cudaSuccess) return;
    forget_error();
    throw InternalError(fmt::format("{}: {}", call, cudaGetErrorString(error)));
}
#define CHECK(call, ...) check(call(__VA_ARGS__), #call)

cudaStream_t stream_of(const Queue& queue) { return static_cast<cudaStream_t>(queue.handle()); }

class GpuMachine final : public Machine {
public:
    GpuMachine(AddOne add_one, int index) : add_one_(add_one), index_(index) {
        make_current();
        // A moment that the clocks of the host and of the GPU have in common.
        cudaStream_t stream = nullptr;
        CHECK(cudaStreamCreateWithPriority, &stream, cudaStreamNonBlocking, 0);
        CHECK(cudaEventCreateWithFlags, &zero_, cudaEventDefault);
        CHECK(cudaEventRecord, zero_, stream);
        CHECK(cudaStreamSynchronize, stream);
        zero_s_ = std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
        CHECK(cudaStreamDestroy, stream);
    }
    ~GpuMachine() override {
        unchecked(cudaSetDevice(index_));
        for (cudaEvent_t event : events_) unchecked(cudaEventDestroy(event));
        unchecked(cudaEventDestroy(zero_));
        for (const Block& b : blocks_) unchecked(b.place == Place::Host ? cudaFreeHost(b.memory) : cudaFree(b.memory));
    }

    bool is_host() const override { return false; }
    std::unique_ptr<Device> device(const DeviceOptions& options) override;

    void add_one(cudaStream_t stream, uint64_t* counter) const { add_one_(stream, counter); }
    // On the thread that calls the runtime next.
    void make_current() const { CHECK(cudaSetDevice, index_); }

    // Kept as long as the machine: other ranks may have copies under way from the memory of one that has ended.
    char* allocate(int64_t wanted, Place place, cudaStream_t stream) {
        const auto bytes = static_cast<size_t>(wanted > 0 ? wanted : 1);
        void* memory = nullptr;
        const cudaError_t error = place == Place::Host ? cudaMallocHost(&memory, bytes) : cudaMalloc(&memory, bytes);
        if (error == cudaErrorMemoryAllocation) {
            forget_error();
            return nullptr;
        }
        check(error, place == Place::Host ? "cudaMallocHost" : "cudaMalloc");
        if (place == Place::Host) {
            std::memset(memory, 0, bytes);
        } else {
            CHECK(cudaMemsetAsync, memory, 0, bytes, stream);
            CHECK(cudaStreamSynchronize, stream);
        }
        const std::lock_guard lock(mutex_);
        blocks_.push_back({memory, place});
        return static_cast<char*>(memory);
    }

    Event new_event(bool timed) {
        cudaEvent_t event = nullptr;
        CHECK(cudaEventCreateWithFlags, &event, timed ? cudaEventDefault : cudaEventDisableTiming);
        const std::lock_guard lock(mutex_);
        events_.push_back(event);
        return static_cast<Event>(events_.size() - 1);
    }
    cudaEvent_t event(Event e) const {
        const std::lock_guard lock(mutex_);
        return events_.at(static_cast<size_t>(e));
    }
    double time_s(Event e) const {
        float ms = 0;
        CHECK(cudaEventElapsedTime, &ms, zero_, event(e));
        return zero_s_ + static_cast<double>(ms) * 1e-3;
    }

private:
    struct Block {
        void* memory;
        Place place;
    };

    const AddOne add_one_;
    const int index_;
    cudaEvent_t zero_ = nullptr;
    double zero_s_ = 0;
    mutable std::mutex mutex_;  // guards what follows
    std::deque<cudaEvent_t> events_;
    std::vector<Block> blocks_;
};

class GpuGraph final : public Graph {
public:
    explicit GpuGraph(cudaGraph_t graph) { CHECK(cudaGraphInstantiate, &executable_, graph, 0); }
    ~GpuGraph() override { unchecked(cudaGraphExecDestroy(executable_)); }
    cudaGraphExec_t executable() const { return executable_; }

private:
    cudaGraphExec_t executable_ = nullptr;
};

class GpuDevice final : public StagedDevice {
public:
    explicit GpuDevice(GpuMachine& machine) : machine_(machine) {
        machine_.make_current();
        int least = 0, greatest = 0;  // the greatest priority is the smallest number
        CHECK(cudaDeviceGetStreamPriorityRange, &least, &greatest);
        for (const QueueTraits& q : kQueueTraits) {
            cudaStream_t stream = nullptr;
            const bool has_priority = q.in_steps && !q.computes;
            CHECK(cudaStreamCreateWithPriority, &stream, cudaStreamNonBlocking, has_priority ? greatest : least);
            queues_[q.queue].emplace(q.queue, nullptr, this, stream);
        }
    }
    ~GpuDevice() override {
        for (std::optional<Queue>& queue : queues_) {
            unchecked(cudaStreamSynchronize(stream_of(*queue)));
            unchecked(cudaStreamDestroy(stream_of(*queue)));
        }
    }

    char* allocate(int64_t bytes, Place place) override {
        machine_.make_current();
        return machine_.allocate(bytes, place, stream_of(queue(QueueName::Loads)));
    }
    Queue& queue(QueueName name) override { return *queues_[name]; }

    Event new_event(bool timed) override {
        machine_.make_current();
        return machine_.new_event(timed);
    }
    void record(Queue& queue, Event event) override {
        machine_.make_current();
        CHECK(cudaEventRecord, machine_.event(event), stream_of(queue));
    }
    void wait(Queue& queue, Event event) override {
        machine_.make_current();
        CHECK(cudaStreamWaitEvent, stream_of(queue), machine_.event(event), 0);
    }
    bool done(Event event) override {
        machine_.make_current();
        const cudaError_t error = cudaEventQuery(machine_.event(event));
        if (error == cudaErrorNotReady) return forget_error(), false;
        check(error, "cudaEventQuery");
        return true;
    }
    double time_s(Event event) override { return machine_.time_s(event); }

    void copy(Queue& queue, void* to, const void* from, int64_t bytes) override {
        if (bytes == 0) return;
        machine_.make_current();
        CHECK(cudaMemcpyAsync, to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, stream_of(queue));
    }
    void fill(Queue& queue, void* to, int byte, int64_t bytes) override {
        if (bytes == 0) return;
        machine_.make_current();
        CHECK(cudaMemsetAsync, to, byte, static_cast<size_t>(bytes), stream_of(queue));
    }
    void launch(Queue&, std::span<void* const> addresses, Work work) override {
        machine_.make_current();
        work(addresses.data());
    }
    void call(Queue& queue, std::function<void()> code) override {
        ensure(!captures_, "gpu: host code in a graph");
        machine_.make_current();
        auto held = std::make_unique<std::function<void()>>(std::move(code));
        const auto run = [](void* data) {
            const std::unique_ptr<std::function<void()>> mine(static_cast<std::function<void()>*>(data));
            (*mine)();
        };
        CHECK(cudaLaunchHostFunc, stream_of(queue), run, held.get());
        held.release();
    }
    void count(Queue& queue, std::atomic<uint64_t>* counter) override {
        static_assert(sizeof *counter == sizeof(uint64_t));
        machine_.make_current();
        machine_.add_one(stream_of(queue), reinterpret_cast<uint64_t*>(counter));
    }
    void finish(Queue& queue) override {
        machine_.make_current();
        CHECK(cudaStreamSynchronize, stream_of(queue));
    }
    void finish(Event event) override {
        machine_.make_current();
        CHECK(cudaEventSynchronize, machine_.event(event));
    }

    std::unique_ptr<Graph> capture(Queue& queue, FunctionRef<void()> give) override {
        machine_.make_current();
        CHECK(cudaStreamBeginCapture, stream_of(queue), cudaStreamCaptureModeThreadLocal);
        captures_ = true;
        cudaGraph_t graph = nullptr;
        try {
            give();
        } catch (...) {
            captures_ = false;
            if (cudaStreamEndCapture(stream_of(queue), &graph) == cudaSuccess) unchecked(cudaGraphDestroy(graph));
            forget_error();
            throw;
        }
        captures_ = false;
        CHECK(cudaStreamEndCapture, stream_of(queue), &graph);
        auto made = std::make_unique<GpuGraph>(graph);
        CHECK(cudaGraphDestroy, graph);
        return made;
    }
    void replay(Queue& queue, const Graph& graph) override {
        machine_.make_current();
        CHECK(cudaGraphLaunch, static_cast<const GpuGraph&>(graph).executable(), stream_of(queue));
    }

private:
    GpuMachine& machine_;
    ByQueue<std::optional<Queue>> queues_;
    bool captures_ = false;  // by the thread that gives a step
};

std::unique_ptr<Device> GpuMachine::device(const DeviceOptions&) { return std::make_unique<GpuDevice>(*this); }

// 13000 -> "13.0"
std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

}  // namespace

Found find() {
    Found found;
    int driver = 0, runtime = 0;
    unchecked(cudaDriverGetVersion(&driver));
    unchecked(cudaRuntimeGetVersion(&runtime));
    const cudaError_t error = cudaGetDeviceCount(&found.count);
    if (error != cudaSuccess || found.count == 0) {
        forget_error();
        found.count = 0;
        found.why_none = error == cudaSuccess || error == cudaErrorNoDevice ? "the driver finds no GPU"
                         : driver == 0                                      ? "this machine has no driver for GPUs"
                         : error == cudaErrorInsufficientDriver
                             ? fmt::format("the driver is for {}, and this build needs {} or later", version_text(driver),
                                           version_text(runtime))
                             : fmt::format("the driver says: {}", cudaGetErrorString(error));
        return found;
    }
    cudaDeviceProp p = {};
    CHECK(cudaGetDeviceProperties, &p, 0);
    found.memory_bytes = static_cast<int64_t>(p.totalGlobalMem);
    found.cache_bytes = p.l2CacheSize;
    found.name = p.name;
    found.compute_capability = 10 * p.major + p.minor;
    found.description = fmt::format("{} (sm_{}{}, {} multiprocessors, {:.1f} GiB), driver {}, runtime {}", p.name, p.major,
                                    p.minor, p.multiProcessorCount, static_cast<double>(p.totalGlobalMem) / (1 << 30),
                                    version_text(driver), version_text(runtime));
    return found;
}

void use(int index) { CHECK(cudaSetDevice, index); }

int64_t used_bytes() {
    size_t free = 0, all = 0;
    CHECK(cudaMemGetInfo, &free, &all);
    return static_cast<int64_t>(all - free);
}

double peak_flops_per_s(std::string_view name, std::string_view dtype) {
    struct Peaks {
        std::string_view name;
        double f32, bf16;
        bool is_end = false;  // of the whole name: variants of it have other peaks
    };
    constexpr Peaks kPeaks[] = {{"A100", 19.5e12, 312e12},
                                {"H100 PCIe", 51e12, 756e12},
                                {"H100 NVL", 60e12, 835e12},
                                {"H100", 67e12, 989e12},
                                {"H200", 67e12, 989e12},
                                {"B200", 75e12, 2250e12},
                                {"L40S", 91.6e12, 362e12},
                                {"RTX 3090", 35.6e12, 71e12, true},
                                {"RTX 4090", 82.6e12, 165.2e12, true},
                                {"RTX 5090", 104.8e12, 209.5e12, true},
                                {"MI250X", 47.9e12, 191.5e12},
                                {"MI300X", 163.4e12, 1307e12}};
    for (const Peaks& p : kPeaks) {
        if (p.is_end ? name.ends_with(p.name) : name.find(p.name) != std::string_view::npos)
            return dtype == "f32" ? p.f32 : dtype == "bf16" || dtype == "f16" ? p.bf16 : 0;
    }
    return 0;
}

std::unique_ptr<Machine> machine(AddOne add_one, int index) { return std::make_unique<GpuMachine>(add_one, index); }

}  // namespace lockstep::device::gpu
