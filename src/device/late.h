// A device that runs everywhere and that nothing works on by accident. Its kernels are the host's. The addresses that host code
// gets lie in a reservation that nobody can read; kernels, copies and collectives use other addresses for the same bytes. Its
// queues run late and in any order that events allow (scheduler.h). A forgotten wait, copy or event is a wrong result, an error
// or a fault. The ranks of a process share one machine. For tests: it is slow, and allocates as it goes.
#pragma once

#include <mutex>
#include <string>

#include "device/scheduler.h"
#include "device/staged.h"

namespace lockstep::device {

class LateMachine : public Machine {
public:
    explicit LateMachine(uint64_t seed) : scheduler_(seed) {}
    ~LateMachine() override;

    bool is_host() const override { return false; }
    std::unique_ptr<Device> device(const DeviceOptions& options) override;

    Scheduler& scheduler() { return scheduler_; }
    // Kept as long as the machine: other ranks may have copies under way from the memory of one that has ended.
    char* allocate(int64_t bytes, Place place);
    // Where kernels find these bytes. Throws InternalError unless all of them are in one allocation.
    char* real(const void* address, int64_t bytes) const;

    Event new_event();
    void record(int queue, Event event);
    void wait(int queue, Event event);
    bool done(Event event);
    void finish(Event event);
    double time_s(Event event) const;

private:
    struct Record {  // of an event
        Scheduler::Ticket ticket;
        std::shared_ptr<const double> time_s;
    };
    struct Block {
        char* address;  // as host code has it
        char* real;
        int64_t bytes;
    };
    const Block* find(const void* address) const;
    Record recorded(Event event) const;

    Scheduler scheduler_;
    mutable std::mutex mutex_;  // guards what follows
    std::vector<Block> blocks_;
    std::vector<Record> events_;  // as each was recorded last
};

class LateDevice : public StagedDevice {
public:
    LateDevice(LateMachine& machine, const DeviceOptions& options);
    ~LateDevice() override;  // after all that was given to it

    char* allocate(int64_t bytes, Place place) override { return machine_.allocate(bytes, place); }
    Queue& queue(QueueName name) override { return *lanes_[name].queue; }
    Event new_event(bool) override { return machine_.new_event(); }
    void record(Queue& queue, Event event) override { machine_.record(number_of(queue), event); }
    void wait(Queue& queue, Event event) override { machine_.wait(number_of(queue), event); }
    bool done(Event event) override { return machine_.done(event); }
    double time_s(Event event) override { return machine_.time_s(event); }
    void copy(Queue& queue, void* to, const void* from, int64_t bytes) override;
    void fill(Queue& queue, void* to, int byte, int64_t bytes) override;
    void launch(Queue& queue, std::span<void* const> addresses, Work work) override;
    void call(Queue& queue, std::function<void()> code) override;
    void count(Queue& queue, std::atomic<uint64_t>* counter) override {
        machine_.scheduler().give(number_of(queue), [counter] { ++*counter; });
    }
    void finish(Queue& queue) override;
    void finish(Event event) override { machine_.finish(event); }

private:
    struct Lane {
        std::unique_ptr<ThreadPool> pool;
        std::unique_ptr<Queue> queue;
        int number = 0;  // of the scheduler's queue
    };
    int number_of(const Queue& queue) const { return lanes_[queue.name()].number; }

    LateMachine& machine_;
    ByQueue<Lane> lanes_;
};

std::unique_ptr<Machine> late_machine(uint64_t seed);

}  // namespace lockstep::device
