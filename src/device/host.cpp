#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/error.h"
#include "base/round.h"
#include "device/device.h"

namespace lockstep::device {
namespace {

constexpr int64_t kHugePageBytes = 1 << 21, kPageBytes = 4096;

class HostDevice final : public Device {
public:
    explicit HostDevice(const DeviceOptions& options) {
        for (const QueueTraits& q : kQueueTraits) {
            if (q.computes) pools_[q.queue].emplace(options.threads, options.cpus);
            else pools_[q.queue].emplace(1);
            queues_[q.queue].emplace(q.queue, &*pools_[q.queue], this);
        }
    }
    ~HostDevice() override {
        for (const Block& b : blocks_) munmap(b.memory, static_cast<size_t>(b.bytes));
    }

    bool is_host() const override { return true; }

    char* allocate(int64_t wanted, Place) override {
        const int64_t bytes = std::max(round_up(wanted, kHugePageBytes), kHugePageBytes);
        void* memory = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) return nullptr;
        madvise(memory, static_cast<size_t>(bytes), MADV_HUGEPAGE);
        blocks_.push_back({memory, bytes});
        auto* begin = static_cast<char*>(memory);
        // Touched now, on this rank's thread, so that a page fault on the step path is impossible.
        for (int64_t i = 0; i < wanted; i += kPageBytes) begin[i] = 0;
        return begin;
    }
    Queue& queue(QueueName name) override { return *queues_[name]; }

    // What was given has happened, and with it every event.
    Event new_event(bool) override { return {}; }
    void record(Queue&, Event) override {}
    void wait(Queue&, Event) override {}
    bool done(Event) override { return true; }
    double time_s(Event) override { throw InternalError("host device: its events have no time"); }
    void count(Queue&, std::atomic<uint64_t>* counter) override { ++*counter; }
    void finish(Queue&) override {}
    void finish(Event) override {}

    void copy(Queue&, void* to, const void* from, int64_t bytes) override { std::memcpy(to, from, static_cast<size_t>(bytes)); }
    void fill(Queue&, void* to, int byte, int64_t bytes) override { std::memset(to, byte, static_cast<size_t>(bytes)); }
    void launch(Queue&, std::span<void* const> addresses, Work work) override { work(addresses.data()); }
    void call(Queue&, std::function<void()> code) override { code(); }
    void read(Queue&, const void* from, int64_t, FunctionRef<void(const char*)> f) override { f(static_cast<const char*>(from)); }
    void write(Queue&, void* to, int64_t, FunctionRef<void(char*)> f) override { f(static_cast<char*>(to)); }

private:
    struct Block {
        void* memory;
        int64_t bytes;
    };
    std::vector<Block> blocks_;
    ByQueue<std::optional<ThreadPool>> pools_;
    ByQueue<std::optional<Queue>> queues_;
};

class HostMachine final : public Machine {
public:
    bool is_host() const override { return true; }
    std::unique_ptr<Device> device(const DeviceOptions& options) override { return std::make_unique<HostDevice>(options); }
};

}  // namespace

std::unique_ptr<Machine> host_machine() { return std::make_unique<HostMachine>(); }

}  // namespace lockstep::device
