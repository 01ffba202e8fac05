// Compiled once per instruction set.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "kernels/cpu/simd.h"

namespace lockstep::kernels::cpu::LOCKSTEP_ISA {

// Calls body(offset, lanes) for whole vectors and one shorter rest. Shares are multiples of 16 elements, a cache line, so
// that every element is computed by the same code for any number of threads.
template <typename Body>
void for_each_vector(ThreadPool& pool, int64_t n, const Body& body) {
    pool.parallel([&](int thread, int threads) {
        const Range mine = split(n, threads, thread, 16);
        int64_t i = mine.begin;
        for (; i + kLanes <= mine.end; i += kLanes) body(i, kLanes);
        if (i < mine.end) body(i, mine.end - i);
    });
}

}  // namespace lockstep::kernels::cpu::LOCKSTEP_ISA
