#include "runtime/flight.h"

#include <algorithm>

namespace lockstep::runtime {

Flight::Flight(int64_t entries, int64_t ahead)
    : wanted_(static_cast<uint64_t>(std::max<int64_t>(1, entries))), entries_(wanted_ + static_cast<uint64_t>(ahead)) {
    for (Records& s : records_) s.slots = std::make_unique<Slot[]>(entries_);
}

void Flight::begin(QueueName queue, const FlightEntry& e) {
    Records& s = records_[queue];
    const uint64_t index = s.written.load(std::memory_order_relaxed);
    Slot& slot = s.slots[index % entries_];
    slot.run.store(e.run, std::memory_order_relaxed);
    slot.entry.store(e.entry, std::memory_order_relaxed);
    slot.call.store(e.call, std::memory_order_relaxed);
    slot.op.store(e.op, std::memory_order_relaxed);
    slot.begin_s.store(e.begin_s, std::memory_order_relaxed);
    s.written.store(index + 1, std::memory_order_release);
}

uint64_t Flight::begun(QueueName queue) const {
    const Records& s = records_[queue];
    const uint64_t written = s.written.load(std::memory_order_acquire);
    const std::atomic<uint64_t>* counter = s.counter.load(std::memory_order_acquire);
    return counter ? std::min(written, counter->load(std::memory_order_acquire)) : written;
}

std::vector<FlightEntry> Flight::last(QueueName queue, int64_t most) const {
    const Records& s = records_[queue];
    const uint64_t end = begun(queue), wanted = std::min<uint64_t>(static_cast<uint64_t>(most), wanted_);
    const uint64_t first = end - std::min(end, wanted);
    std::vector<FlightEntry> out;
    for (uint64_t i = first; i < end; ++i) {
        const Slot& slot = s.slots[i % entries_];
        out.push_back({slot.run.load(std::memory_order_relaxed), slot.entry.load(std::memory_order_relaxed),
                       slot.call.load(std::memory_order_relaxed), slot.op.load(std::memory_order_relaxed),
                       slot.begin_s.load(std::memory_order_relaxed)});
    }
    const uint64_t now = s.written.load(std::memory_order_acquire);
    // Those that the queue's thread has overwritten meanwhile, and the one that it may be writing.
    const uint64_t kept = now + 1 > entries_ ? now + 1 - entries_ : 0;
    if (kept > first) out.erase(out.begin(), out.begin() + static_cast<long>(std::min<uint64_t>(kept - first, out.size())));
    return out;
}

}  // namespace lockstep::runtime
