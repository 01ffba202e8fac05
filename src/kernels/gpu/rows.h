// Rows that `Threads` threads of a block share, W elements at a time; a block of kBlock threads has kBlock / Threads of them.
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

// What a thread adds up over the rows of its block: in registers, beyond kHeld in memory, which nobody else uses meanwhile.
template <int Threads, int W>
class ColumnSums {
public:
    __device__ explicit ColumnSums(float* memory) : memory_(memory) {}
    __device__ __forceinline__ void add(int k, int i, const Floats<W>& x, bool first) {
        if (k < kHeld) {
            UNROLL
            for (int j = 0; j < W; ++j) held_[k][j] += x[j];
        } else {
            Floats<W> sum = x;
            if (!first) {
                sum = load<W>(memory_ + i);
                UNROLL
                for (int j = 0; j < W; ++j) sum[j] += x[j];
            }
            store(memory_ + i, sum);
        }
    }
    // Into sums [n] of the block. Where rows are short, each of the block's groups has some:
    // they are added in the groups' order.
    __device__ void write(int n, float* sums, float* shared) {
        const int group = static_cast<int>(thread()) / Threads;
        float* const own = Threads == kBlock ? sums : shared + group * n;
        for_pieces<Threads, W>(n, [&](int k, int i) {
            if (k < kHeld) store(own + i, held_[k]);
        });
        if constexpr (Threads < kBlock) {
            block_barrier();
            for (int i = static_cast<int>(thread()); i < n; i += kBlock) {
                float sum = 0;
                for (int g = 0; g < kBlock / Threads; ++g) sum += shared[g * n + i];
                sums[i] = sum;
            }
            block_barrier();
        }
    }

private:
    float* memory_;
    Floats<W> held_[kHeld] = {};
};

// Into shared memory where rows are short: of what ColumnSums::write asks.
inline unsigned shared_of_sums(int threads, int64_t n) {
    return threads < kBlock ? static_cast<unsigned>(kBlock / threads * n * int64_t{sizeof(float)}) : 0;
}

// The number of rows of a block is one for each group of `threads`.
inline Grid grid_of_rows(int64_t rows, int threads) {
    const int64_t a_block = kBlock / threads;
    return {static_cast<unsigned>((rows + a_block - 1) / a_block), kBlock};
}

}  // namespace lockstep::kernels::gpu
