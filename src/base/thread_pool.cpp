#include "base/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>

#include "base/error.h"

namespace lockstep {
namespace {

// About 10 us on a 3 GHz x86 (a pause is 40 to 140 cycles): longer than the gap between two kernels of a layer, shorter
// than a time slice of somebody else's. Waking a sleeper costs 5 to 50 us.
constexpr int kSpins = 400;

inline void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Returns when value() != old: spins first, then sleeps.
template <typename T>
void wait_for_change(const std::atomic<T>& value, T old) {
    for (int i = 0; i < kSpins; ++i) {
        if (value.load(std::memory_order_acquire) != old) return;
        pause();
    }
    value.wait(old, std::memory_order_acquire);
}

}  // namespace

Range split(int64_t n, int parts, int index, int64_t alignment) {
    const int64_t units = (n + alignment - 1) / alignment;
    const int64_t each = units / parts, more = units % parts;
    const int64_t begin = index * each + std::min<int64_t>(index, more);
    const int64_t end = begin + each + (index < more ? 1 : 0);
    return {std::min(n, begin * alignment), std::min(n, end * alignment)};
}

ThreadPool::ThreadPool(int threads, std::vector<int> cpus) : threads_(threads) {
    ensure(threads >= 1, "ThreadPool: threads must be at least 1");
    workers_.reserve(threads - 1);
    for (int i = 1; i < threads; ++i) {
        workers_.emplace_back([this, i] { work(i); });
        if (i >= static_cast<int>(cpus.size())) continue;
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET(cpus[i], &set);
        // A cpu outside the process's allowance leaves the thread where it is: slower, not wrong.
        (void)pthread_setaffinity_np(workers_.back().native_handle(), sizeof(set), &set);
    }
}

ThreadPool::~ThreadPool() {
    stop_.store(true, std::memory_order_relaxed);
    generation_.fetch_add(1, std::memory_order_release);
    generation_.notify_all();
    for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::parallel(Task task) {
    if (threads_ == 1) {
        task(0, 1);
        return;
    }
    task_ = &task;
    running_.store(threads_ - 1, std::memory_order_relaxed);
    generation_.fetch_add(1, std::memory_order_release);
    generation_.notify_all();
    task(0, threads_);
    for (int left = running_.load(std::memory_order_acquire); left != 0; left = running_.load(std::memory_order_acquire))
        wait_for_change(running_, left);
}

void ThreadPool::work(int thread) {
    uint32_t seen = 0;
    while (true) {
        wait_for_change(generation_, seen);
        ++seen;  // never behind by more than one: parallel() returns only when every worker has finished
        if (stop_.load(std::memory_order_relaxed)) return;
        (*task_)(thread, threads_);
        if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) running_.notify_one();
    }
}

}  // namespace lockstep
