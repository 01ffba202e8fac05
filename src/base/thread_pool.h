// A fixed team of threads for the kernels of one rank. The caller of parallel() is thread 0, so a pool of one thread
// starts none and calls inline. Several pools may live in one process, one per rank-thread; a pool serves one caller at
// a time. parallel() allocates nothing; workers spin for some microseconds after a call, then sleep on a futex.
// The function given to parallel() must not throw on a worker (the process would end) and must not call parallel().
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "base/function_ref.h"

namespace lockstep {

struct Range {
    int64_t begin = 0, end = 0;
    int64_t count() const { return end - begin; }
};

// Part `index` of [0, n) cut into `parts` parts whose borders are multiples of `alignment`; sizes differ by at most one
// alignment unit, later parts may be empty.
Range split(int64_t n, int parts, int index, int64_t alignment = 1);

class ThreadPool {
public:
    using Task = FunctionRef<void(int thread, int threads)>;

    // `threads` >= 1 counts the caller. Thread i is pinned to cpus[i] where that exists (thread 0, the caller, is left
    // as it is); an empty list pins nothing.
    explicit ThreadPool(int threads, std::vector<int> cpus = {});
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int threads() const { return threads_; }

    // Calls task(i, threads()) once for every i, in parallel, and returns when all have returned.
    void parallel(Task task);

private:
    void work(int thread);

    int threads_;
    const Task* task_ = nullptr;
    std::atomic<uint32_t> generation_{0};  // one more for each parallel(); task_ is set before
    std::atomic<int> running_{0};          // workers that have not finished the current task
    std::atomic<bool> stop_{false};
    std::vector<std::thread> workers_;
};

}  // namespace lockstep
