#include "device/late.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <utility>

#include "base/error.h"
#include "base/round.h"

namespace lockstep::device {
namespace {

constexpr int64_t kPageBytes = 4096;

char* map(int64_t bytes, int protection, int flags) {
    void* memory = mmap(nullptr, static_cast<size_t>(bytes), protection, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    return memory == MAP_FAILED ? nullptr : static_cast<char*>(memory);
}

}  // namespace

LateMachine::~LateMachine() {
    for (const Block& b : blocks_) {
        munmap(b.real, static_cast<size_t>(b.bytes));
        if (b.address != b.real) munmap(b.address, static_cast<size_t>(b.bytes));
    }
}

std::unique_ptr<Device> LateMachine::device(const DeviceOptions& options) { return std::make_unique<LateDevice>(*this, options); }

char* LateMachine::allocate(int64_t wanted, Place place) {
    const int64_t bytes = std::max(round_up(wanted + 1, kPageBytes), kPageBytes);
    Block b{nullptr, map(bytes, PROT_READ | PROT_WRITE, 0), bytes};
    if (!b.real) return nullptr;
    b.address = place == Place::Host ? b.real : map(bytes, PROT_NONE, MAP_NORESERVE);
    if (!b.address) {
        munmap(b.real, static_cast<size_t>(bytes));
        return nullptr;
    }
    const std::lock_guard lock(mutex_);
    blocks_.push_back(b);
    return b.address;
}

const LateMachine::Block* LateMachine::find(const void* address) const {
    const std::less_equal<const void*> not_after;
    const std::less<const void*> before;
    for (const Block& b : blocks_) {
        if (not_after(b.address, address) && before(address, b.address + b.bytes)) return &b;
    }
    return nullptr;
}

char* LateMachine::real(const void* address, int64_t bytes) const {
    const std::lock_guard lock(mutex_);
    const Block* b = find(address);
    if (!b) throw InternalError(fmt::format("late device: {} is not memory that it knows", address));
    const int64_t offset = static_cast<const char*>(address) - b->address;
    if (offset + bytes > b->bytes)
        throw InternalError(fmt::format("late device: {} bytes at {} of an allocation of {}", bytes, offset, b->bytes));
    return b->real + offset;
}

Event LateMachine::new_event() {
    const std::lock_guard lock(mutex_);
    events_.emplace_back();
    return static_cast<Event>(events_.size() - 1);
}

LateMachine::Record LateMachine::recorded(Event event) const {
    const std::lock_guard lock(mutex_);
    return events_.at(static_cast<size_t>(event));
}

void LateMachine::record(int queue, Event event) {
    const auto time_s = std::make_shared<double>();
    const auto now_s = [] { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); };
    Scheduler::Ticket ticket = scheduler_.give(queue, [time_s, now_s] { *time_s = now_s(); });
    const std::lock_guard lock(mutex_);
    events_.at(static_cast<size_t>(event)) = {std::move(ticket), time_s};
}

void LateMachine::wait(int queue, Event event) {
    if (Scheduler::Ticket ticket = recorded(event).ticket) scheduler_.wait(queue, std::move(ticket));
}

bool LateMachine::done(Event event) {
    const Scheduler::Ticket ticket = recorded(event).ticket;
    return !ticket || scheduler_.done(ticket);
}

void LateMachine::finish(Event event) {
    if (Scheduler::Ticket ticket = recorded(event).ticket) scheduler_.run_until(ticket);
}

double LateMachine::time_s(Event event) const {
    const Record record = recorded(event);
    return record.time_s ? *record.time_s : 0;
}

LateDevice::LateDevice(LateMachine& machine, const DeviceOptions& options) : machine_(machine) {
    for (const QueueTraits& q : kQueueTraits) {
        Lane& lane = lanes_[q.queue];
        lane.pool = q.computes ? std::make_unique<ThreadPool>(options.threads, options.cpus) : std::make_unique<ThreadPool>(1);
        lane.queue = std::make_unique<Queue>(q.queue, lane.pool.get(), this);
        lane.number = machine_.scheduler().add_queue();
    }
}

LateDevice::~LateDevice() {
    for (Lane& lane : lanes_) LateDevice::finish(*lane.queue);
}

void LateDevice::copy(Queue& queue, void* to, const void* from, int64_t bytes) {
    char* const real_to = machine_.real(to, bytes);
    const char* const real_from = machine_.real(from, bytes);
    machine_.scheduler().give(number_of(queue), [=] { std::memcpy(real_to, real_from, static_cast<size_t>(bytes)); });
}

void LateDevice::fill(Queue& queue, void* to, int byte, int64_t bytes) {
    char* const real = machine_.real(to, bytes);
    machine_.scheduler().give(number_of(queue), [=] { std::memset(real, byte, static_cast<size_t>(bytes)); });
}

void LateDevice::launch(Queue& queue, std::span<void* const> addresses, Work work) {
    std::vector<void*> real;
    for (void* address : addresses) real.push_back(address ? machine_.real(address, 0) : nullptr);
    machine_.scheduler().give(number_of(queue), [real = std::move(real), work = std::move(work)] { work(real.data()); });
}

void LateDevice::call(Queue& queue, std::function<void()> code) { machine_.scheduler().give(number_of(queue), std::move(code)); }

void LateDevice::finish(Queue& queue) { machine_.scheduler().run_until(machine_.scheduler().give(number_of(queue))); }

std::unique_ptr<Machine> late_machine(uint64_t seed) { return std::make_unique<LateMachine>(seed); }

}  // namespace lockstep::device
