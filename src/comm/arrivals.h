// Counters that threads wait for, and that can be closed. After close() nothing can be added, and threads whose count was not
// reached stop waiting. Count and closed flag are one atomic word, so an addition counts for all waiters or for none.
// A waiter spins for some microseconds and then sleeps in the kernel: with more ranks than cores, spinning would keep the
// awaited thread from running.
#pragma once

#include <atomic>
#include <cstdint>

namespace lockstep::comm {

inline void pause_cpu() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

class alignas(64) Count {
public:
    // Returns false if closed.
    bool add() {
        uint32_t word = word_.load(std::memory_order_relaxed);
        do {
            if (word & kClosed) return false;
        } while (!word_.compare_exchange_weak(word, word + kOne));
        word_.notify_all();
        return true;
    }

    // Waits for the `count`-th addition. `count` may wrap around and is less than 2^30 away. Returns false if the counter was
    // closed before it.
    bool wait_for(uint32_t count) {
        uint32_t word = word_.load(std::memory_order_acquire);
        for (int spin = 0; spin < kSpins && !reached(word, count); ++spin) {
            pause_cpu();
            word = word_.load(std::memory_order_acquire);
        }
        while (!reached(word, count)) {
            if (word & kClosed) return false;
            word_.wait(word, std::memory_order_acquire);
            word = word_.load(std::memory_order_acquire);
        }
        return true;
    }

    void close() {
        word_.fetch_or(kClosed);
        word_.notify_all();
    }
    bool is_closed() const { return word_.load() & kClosed; }

private:
    static constexpr uint32_t kClosed = 1, kOne = 2;
    static constexpr int kSpins = 200;

    static bool reached(uint32_t word, uint32_t count) { return static_cast<int32_t>((word & ~kClosed) - kOne * count) >= 0; }

    std::atomic<uint32_t> word_{0};  // how many there were, times kOne, plus kClosed
};

// A barrier of a fixed set of threads: either all members of a round pass it or none does.
class Arrivals {
public:
    // round_end belongs to the calling member (starts at 0, nobody else touches it). Returns false if closed.
    bool arrive_and_wait(uint32_t& round_end, int members) {
        round_end += static_cast<uint32_t>(members);
        return count_.add() && count_.wait_for(round_end);
    }
    void close() { count_.close(); }

private:
    Count count_;
};

}  // namespace lockstep::comm
