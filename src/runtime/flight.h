// The last ops of a rank's queues: a ring that each queue's thread writes as it goes and that another thread may read at any
// time, for the record of a job that went wrong.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "ir/program.h"

namespace lockstep::runtime {

// An op that a queue has begun. It ran until the next entry began; the last one runs. On a device that is not the host begin_s
// says when it was given to its queue.
struct FlightEntry {
    int64_t run = 0;                   // of entries, counted from 1
    const ir::Entry* entry = nullptr;  // null: nothing runs
    int call = -1, op = -1;
    double begin_s = 0;  // of std::chrono::steady_clock
};

class Flight {
public:
    // `entries`: of a queue, that last() can give; at least 1. `ahead`: the most that are written before they begin.
    explicit Flight(int64_t entries, int64_t ahead = 0);

    // By the thread that plays the queue.
    void begin(QueueName queue, const FlightEntry& entry);
    // What is written down has begun when this counter says so, in turn.
    void follow(QueueName queue, const std::atomic<uint64_t>* counter) { records_[queue].counter = counter; }

    // By any thread. How many have begun; the last `most` of them, oldest first.
    uint64_t begun(QueueName queue) const;
    std::vector<FlightEntry> last(QueueName queue, int64_t most) const;
    int64_t entries() const { return static_cast<int64_t>(wanted_); }

private:
    struct Slot {  // relaxed: an entry that is overwritten while it is read is left out
        std::atomic<int64_t> run{0};
        std::atomic<const ir::Entry*> entry{nullptr};
        std::atomic<int> call{-1}, op{-1};
        std::atomic<double> begin_s{0};
    };
    struct Records {
        std::unique_ptr<Slot[]> slots;
        alignas(64) std::atomic<uint64_t> written{0};
        std::atomic<const std::atomic<uint64_t>*> counter{nullptr};
    };
    const uint64_t wanted_, entries_;
    ByStepQueue<Records> records_;
};

}  // namespace lockstep::runtime
