// A barrier of a fixed set of threads that can be closed: after close(), a round that is not complete never will be.
// Whether a round completed is decided in one atomic word, so either all of its members pass or none does.
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

class alignas(64) Arrivals {
public:
    // round_end belongs to the calling member (starts at 0, nobody else touches it). Returns false if closed.
    bool arrive_and_wait(uint32_t& round_end, int members) {
        round_end += kOne * static_cast<uint32_t>(members);
        uint32_t word = word_.load(std::memory_order_relaxed);
        do {
            if (word & kClosed) return false;
        } while (!word_.compare_exchange_weak(word, word + kOne));
        word += kOne;
        if (reached(word, round_end)) {
            word_.notify_all();
            return true;
        }
        for (int spin = 0; spin < kSpins; ++spin) {
            word = word_.load(std::memory_order_acquire);
            if (reached(word, round_end)) return true;
            pause_cpu();
        }
        while (!reached(word, round_end)) {
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

private:
    static constexpr uint32_t kClosed = 1, kOne = 2;
    static constexpr int kSpins = 200;

    // Arrivals wrap around; a member is never more than one round away from the others.
    static bool reached(uint32_t word, uint32_t round_end) { return static_cast<int32_t>((word & ~kClosed) - round_end) >= 0; }

    std::atomic<uint32_t> word_{0};  // arrivals ever made, times kOne, plus kClosed
};

}  // namespace lockstep::comm
