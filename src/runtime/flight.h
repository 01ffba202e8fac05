// The last ops of a rank's streams: a ring that each stream writes as it goes and that another thread may read at any time, for
// the record of a job that went wrong.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "ir/program.h"

namespace lockstep::runtime {

// An op that a stream has begun. It ran until the next entry began; the last one runs.
struct FlightEntry {
    int64_t run = 0;                   // of entries, counted from 1
    const ir::Entry* entry = nullptr;  // null: nothing runs
    int call = -1, op = -1;
    double begin_s = 0;  // of std::chrono::steady_clock
};

class Flight {
public:
    explicit Flight(int64_t entries);  // of a stream; at least 1

    // By the stream's own thread.
    void begin(int stream, const FlightEntry& entry);

    // By any thread. How many have begun; the last `most` of them, oldest first.
    uint64_t begun(int stream) const { return streams_[static_cast<size_t>(stream)].begun.load(std::memory_order_acquire); }
    std::vector<FlightEntry> last(int stream, int64_t most) const;
    int64_t entries() const { return static_cast<int64_t>(entries_); }

private:
    struct Slot {  // relaxed: an entry that is overwritten while it is read is left out
        std::atomic<int64_t> run{0};
        std::atomic<const ir::Entry*> entry{nullptr};
        std::atomic<int> call{-1}, op{-1};
        std::atomic<double> begin_s{0};
    };
    struct Stream {
        std::unique_ptr<Slot[]> slots;
        alignas(64) std::atomic<uint64_t> begun{0};
    };
    const uint64_t entries_;
    std::array<Stream, 2> streams_;
};

}  // namespace lockstep::runtime
