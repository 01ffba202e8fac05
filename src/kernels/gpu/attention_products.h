// Products of attention by tensor cores: rows of queries or keys in shared memory, D elements and 8 more, so that the same
// columns of neighbouring rows lie in different banks. D: a multiple of 16, head_dim or more.
#pragma once

#include "kernels/gpu/attention_blocks.h"

namespace lockstep::kernels::gpu {

// Starts copies of n rows from `begin` on. What does not exist, beyond the last row or beyond head_dim, becomes 0.
template <int D, class T, class Place>
__device__ __forceinline__ void copy_rows(const T* x, int head_dim, int begin, int count, int n, T* to, Place place_of) {
    constexpr int kChunk = sizeof(Chunk) / sizeof(T), kChunks = D / kChunk;
    for (int i = static_cast<int>(thread()); i < n * kChunks; i += static_cast<int>(threads())) {
        const int row = begin + i / kChunks, column = i % kChunks * kChunk;
        const bool exists = row < count && column < head_dim;
        start_copy<sizeof(Chunk)>(to + i / kChunks * (D + kChunk) + column, exists ? x + place_of(row) + column : x, exists);
    }
}
// The way back, after a barrier.
template <int D, class T, class Place>
__device__ __forceinline__ void write_rows(const T* from, int head_dim, int begin, int count, int n, T* x, Place place_of) {
    constexpr int kChunk = sizeof(Chunk) / sizeof(T), kChunks = D / kChunk;
    for (int i = static_cast<int>(thread()); i < n * kChunks; i += static_cast<int>(threads())) {
        const int row = begin + i / kChunks, column = i % kChunks * kChunk;
        if (row >= count || column >= head_dim) continue;
        *reinterpret_cast<Chunk*>(x + place_of(row) + column) =
            *reinterpret_cast<const Chunk*>(from + i / kChunks * (D + kChunk) + column);
    }
}

// The part of `left` operands from 16 rows and 16 columns that begin at x, and that of two `right` ones, of 16 columns of the
// sum, from x whose rows are what is summed over: both have one pattern.
template <bool transposed, int D, class T>
__device__ __forceinline__ void load_square(uint32_t (&words)[4], const T* x) {
    const int lane = static_cast<int>(thread()) % kLanes;
    load_matrices<transposed>(words, x + lane % 16 * (D + 8) + lane / 16 * 8);
}
// sum [16 M, N] += left [16 M, D] right [N, D]^T
template <int D, class T, int M, int N>
__device__ __forceinline__ void add_scores(float (&sum)[M][N / 8][4], const T* left, const T* right) {
    const int lane = static_cast<int>(thread()) % kLanes;
    const T* const own_right = right + (lane % 8 + lane / 16 * 8) * (D + 8) + lane / 8 % 2 * 8;
    UNROLL
    for (int c = 0; c < D; c += 16) {
        uint32_t a[M][4];
        UNROLL
        for (int m = 0; m < M; ++m) load_square<false, D>(a[m], left + m * 16 * (D + 8) + c);
        UNROLL
        for (int n = 0; n < N; n += 16) {
            uint32_t b[4];
            load_matrices<false>(b, own_right + n * (D + 8) + c);
            UNROLL
            for (int m = 0; m < M; ++m) {
                mma_16x8x16<T>(sum[m][n / 8], a[m], b[0], b[1]);
                mma_16x8x16<T>(sum[m][n / 8 + 1], a[m], b[2], b[3]);
            }
        }
    }
}
// sum [16 M, Columns] += p [16 M, N] x [N, Columns of D], p as it is in a warp's sums, rounded to T.
template <int D, class T, int M, int N, int Columns>
__device__ __forceinline__ void add_products(float (&sum)[M][Columns / 8][4], const float (&p)[M][N / 8][4], const T* x) {
    UNROLL
    for (int k = 0; k < N; k += 16) {
        uint32_t a[M][4];
        UNROLL
        for (int m = 0; m < M; ++m) {
            UNROLL
            for (int i = 0; i < 4; ++i) {
                const float(&own)[4] = p[m][k / 8 + i / 2];
                a[m][i] = pack<T>(own[i % 2 * 2], own[i % 2 * 2 + 1]);
            }
        }
        UNROLL
        for (int n = 0; n < Columns; n += 16) {
            uint32_t b[4];
            load_square<true, D>(b, x + k * (D + 8) + n);
            UNROLL
            for (int m = 0; m < M; ++m) {
                mma_16x8x16<T>(sum[m][n / 8], a[m], b[0], b[1]);
                mma_16x8x16<T>(sum[m][n / 8 + 1], a[m], b[2], b[3]);
            }
        }
    }
}
// f(m, n, i): each element of a warp's sums that this lane has: row m * 16 + row_of(i), column n * 8 + column_of(i).
template <int M, int N, class F>
__device__ __forceinline__ void for_elements(F f) {
    UNROLL
    for (int m = 0; m < M; ++m) {
        UNROLL
        for (int n = 0; n < N / 8; ++n) {
            UNROLL
            for (int i = 0; i < 4; ++i) f(m, n, i);
        }
    }
}
__device__ __forceinline__ int row_of(int i) { return static_cast<int>(thread()) % kLanes / 4 + i / 2 * 8; }
__device__ __forceinline__ int column_of(int i) { return static_cast<int>(thread()) % 4 * 2 + i % 2; }

// A warp's sums, times a factor, into rows of shared memory.
template <int D, class T, int M, int N>
__device__ __forceinline__ void put_sums(const float (&sums)[M][N][4], float factor, T* to) {
    for_elements<M, N * 8>([&](int m, int n, int i) {
        if (i % 2 == 1) return;
        const uint32_t word = pack<T>(sums[m][n][i] * factor, sums[m][n][i + 1] * factor);
        memcpy(to + (m * 16 + row_of(i)) * (D + 8) + n * 8 + column_of(i), &word, sizeof word);
    });
}

// Columns 2t, 2t + 1 of rows g and g + 8 become four columns, from 4 (t / 2) on, of one of these rows: of g where t is even.
__device__ __forceinline__ Floats<4> four_columns(const float (&x)[4]) {
    const bool is_first = thread() % 2 == 0;
    const float low = shuffle_xor(is_first ? x[2] : x[0], 1), high = shuffle_xor(is_first ? x[3] : x[1], 1);
    return is_first ? Floats<4>{{x[0], x[1], low, high}} : Floats<4>{{low, high, x[2], x[3]}};
}
// The warp's sums, times a factor, as floats: row `begin` of x and on, of which there are `count`.
template <int M, int N, class Place>
__device__ __forceinline__ void write_sums(const float (&sums)[M][N][4], float factor, int columns, int begin, int count,
                                           float* x, Place place_of, bool adds = false) {
    UNROLL
    for (int m = 0; m < M; ++m) {
        const int row = begin + m * 16 + row_of(static_cast<int>(thread()) % 2 * 2);
        float* const to = x + place_of(row < count ? row : 0);
        UNROLL
        for (int n = 0; n < N; ++n) {
            Floats<4> four = four_columns(sums[m][n]);
            const int column = n * 8 + static_cast<int>(thread()) % 4 / 2 * 4;
            if (row >= count || column >= columns) continue;
            UNROLL
            for (int j = 0; j < 4; ++j) four[j] *= factor;
            if (adds) {
                const Floats<4> before = load<4>(to + column);
                UNROLL
                for (int j = 0; j < 4; ++j) four[j] += before[j];
            }
            store(to + column, four);
        }
    }
}

}  // namespace lockstep::kernels::gpu
