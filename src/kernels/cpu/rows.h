// What kernels over rows share: rows over threads, and rows of floats in workspaces.
#pragma once

#include "base/round.h"
#include "base/thread_pool.h"

namespace lockstep::kernels::cpu {

// Floats up to the end of a cache line.
constexpr int64_t padded(int64_t floats) { return round_up(floats, kAlignmentBytes / 4); }

// Calls body(row) for each row, rows shared out among the threads.
template <class Body>
void for_each_row(ThreadPool& pool, int64_t rows, const Body& body) {
    pool.parallel([&](int thread, int threads) {
        const Range mine = split(rows, threads, thread);
        for (int64_t r = mine.begin; r < mine.end; ++r) body(r);
    });
}

}  // namespace lockstep::kernels::cpu
