// Timed work runs on a processor of its own: an unpinned thread may share one with the team that it times.
#pragma once

#include <pthread.h>
#include <sched.h>

#include <exception>
#include <thread>

namespace lockstep::measure {

inline void pin_to(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(static_cast<size_t>(cpu), &set);
    pthread_setaffinity_np(pthread_self(), sizeof set, &set);  // where it is refused the thread stays where it is
}

// Runs f on a thread that keeps to that processor, and waits for it. What f throws is thrown here.
template <class F>
void on_cpu(int cpu, F f) {
    std::exception_ptr failed;
    std::thread([&] {
        pin_to(cpu);
        try {
            f();
        } catch (...) {
            failed = std::current_exception();
        }
    }).join();
    if (failed) std::rethrow_exception(failed);
}

}  // namespace lockstep::measure
