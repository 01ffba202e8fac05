// Rows that threads of a block share. Of any length: `Threads` threads have a row, W elements at a time, and a block of kBlock
// threads has kBlock / Threads rows. Of a length whose pieces are known when the kernel is compiled: Pieces.
#pragma once

#include "kernels/gpu/dialect.h"

namespace lockstep::kernels::gpu {

inline constexpr int kBlock = 256;
inline constexpr int kHeld = 4;  // pieces of a row that a thread keeps in registers; it reads the others again

// f(k, i): the piece of W elements from i on; k < kHeld is its number, kHeld represents all others.
template <int Threads, int W, class F>
__device__ __forceinline__ void for_pieces(int n, F f) {
    int i = static_cast<int>(thread() % Threads) * W;
    UNROLL
    for (int k = 0; k < kHeld; ++k, i += Threads * W) {
        if (i < n) f(k, i);
    }
    for (; i < n; i += Threads * W) f(kHeld, i);
}

// Of this thread's group: rows first_row(), first_row() + rows_at_once(), ..
template <int Threads>
__device__ __forceinline__ int64_t first_row() {
    return static_cast<int64_t>(block()) * (kBlock / Threads) + thread() / Threads;
}
template <int Threads>
__device__ __forceinline__ int64_t rows_at_once() {
    return static_cast<int64_t>(blocks()) * (kBlock / Threads);
}

// start(the number of threads that share a row, W). Rows that cannot be read 16 bytes at a time are rare, and have one kind.
template <class Start>
void by_shape(int64_t n, bool wide, Start start) {
    if (!wide) start.template operator()<kBlock, 1>();
    else if (n <= int64_t{kLanes} * kHeld * kWide) start.template operator()<kLanes, kWide>();
    else start.template operator()<kBlock, kWide>();
}

// Of a row of at most kMost elements each of kThreads threads has kCount pieces of kWide elements; a block has kRows such rows.
// The kernel's blocks stay, each goes on to other rows: what it keeps in registers may be the next row's.
template <int Threads, int Count, int Block = Threads>
struct Pieces {
    static constexpr int kThreads = Threads, kCount = Count, kOfBlock = Block, kRows = Block / Threads;
    static constexpr int64_t kMost = int64_t{Threads} * Count * kWide;
    static_assert(Threads == kLanes || Threads == Block);

    // f(k, i): piece k of this thread, the elements from i on.
    template <class F>
    __device__ static __forceinline__ void for_each(int n, F f) {
        const int first = static_cast<int>(thread() % Threads) * kWide;
        UNROLL
        for (int k = 0; k < Count; ++k) {
            if (first + k * Threads * kWide < n) f(k, first + k * Threads * kWide);
        }
    }
    __device__ static int64_t first_row() { return static_cast<int64_t>(block()) * kRows + thread() / Threads; }
    __device__ static int64_t rows_at_once() { return static_cast<int64_t>(blocks()) * kRows; }

    // For the sums of a row in shared memory. A row uses the half of its parity: the barrier of the next row says that all threads
    // have read it.
    template <int Sums>
    struct Parts {
        static constexpr int kWarps = Threads > kLanes ? Block / kLanes : 1;
        float of[2][Sums][kWarps];
    };
    // Replaces each sum by that over all threads of the row, in one order. All threads have one barrier.
    template <int Sums>
    __device__ static __forceinline__ void sum_row(float (&sums)[Sums], Parts<Sums>& parts, int parity) {
        UNROLL
        for (int mask = kLanes / 2; mask > 0; mask /= 2) {
            UNROLL
            for (int s = 0; s < Sums; ++s) sums[s] += shuffle_xor(sums[s], mask);
        }
        if constexpr (Threads > kLanes) {
            auto& own = parts.of[parity];
            if (thread() % kLanes == 0) {
                UNROLL
                for (int s = 0; s < Sums; ++s) own[s][thread() / kLanes] = sums[s];
            }
            block_barrier();
            UNROLL
            for (int s = 0; s < Sums; ++s) {
                sums[s] = own[s][0];
                UNROLL
                for (int warp = 1; warp < Block / kLanes; ++warp) sums[s] += own[s][warp];
            }
        }
    }
};

// start(Pieces) of rows of n elements of T; false where they have too many, or cannot be read 16 bytes at a time.
template <class T, class Start>
bool by_pieces(int64_t n, bool wide, Start start) {
    if (!wide) return false;
    if (n <= Pieces<kLanes, 1, 256>::kMost) start(Pieces<kLanes, 1, 256>{});
    else if (n <= Pieces<128, 1>::kMost) start(Pieces<128, 1>{});
    else if (n <= Pieces<256, 1>::kMost) start(Pieces<256, 1>{});
    else if constexpr (sizeof(T) == 2) {
        if (n <= Pieces<256, 2>::kMost) start(Pieces<256, 2>{});
        else if (n <= Pieces<512, 2>::kMost) start(Pieces<512, 2>{});
        else return false;
    } else {
        if (n > Pieces<512, 1>::kMost) return false;
        start(Pieces<512, 1>{});
    }
    return true;
}

// Blocks that all are in a processor at once.
template <class P>
Grid grid_of_pieces(int64_t rows, int of_processor) {
    const int64_t wanted = (rows + P::kRows - 1) / P::kRows, most = int64_t{kProcessors} * of_processor;
    return {static_cast<unsigned>(wanted < most ? wanted : most), P::kOfBlock};
}

// The number of rows of a block is one for each group of `threads`.
inline Grid grid_of_rows(int64_t rows, int threads) {
    const int64_t a_block = kBlock / threads;
    return {static_cast<unsigned>((rows + a_block - 1) / a_block), kBlock};
}

}  // namespace lockstep::kernels::gpu
