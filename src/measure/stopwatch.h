// Time, and the rate of work that is done several times.
#pragma once

#include <algorithm>
#include <chrono>
#include <ctime>

namespace lockstep::measure {

inline double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Of a core, by the calling thread.
inline double core_of_thread_s() {
    timespec t{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// The best rate of `samples` samples, in `amount` per second: other work on the machine only lowers a rate.
double best_rate(int samples, double amount, const auto& work) {
    double best = 0;
    for (int i = 0; i < samples; ++i) {
        const double start_s = now_s();
        work();
        best = std::max(best, amount / (now_s() - start_s));
    }
    return best;
}

}  // namespace lockstep::measure
