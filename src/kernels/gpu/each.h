// Kernels in which no element looks at another: a functor that does W elements at a time, at(i) for those from i on.
#pragma once

#include "kernels/gpu/dialect.h"

namespace lockstep::kernels::gpu {

inline constexpr int kEachThreads = 256;
inline constexpr int64_t kEachBlocks = 8 * 264;  // more would wait for a processor: eight such blocks fit into one

// f.at<W>(i) for this thread's part of n elements, W at a time; then at<1> for those that are left at the end.
template <int W, class F>
__device__ __forceinline__ void for_own(int64_t n, F&& f) {
    const int64_t all = static_cast<int64_t>(blocks()) * kEachThreads,
                  own = static_cast<int64_t>(block()) * kEachThreads + thread();
    for (int64_t i = own; i < n / W; i += all) f.template at<W>(i * W);
    NO_UNROLL
    for (int64_t i = n / W * W + own; i < n; i += all) f.template at<1>(i);
}

template <int W, class F>
__global__ void __launch_bounds__(kEachThreads) each_kernel(int64_t n, F f) {
    for_own<W>(n, f);
}

// A thread for each of these pieces, as long as there are enough blocks.
inline Grid grid_of_pieces(int64_t pieces) {
    const int64_t wanted = (pieces + kEachThreads - 1) / kEachThreads;
    return {static_cast<unsigned>(wanted < kEachBlocks ? wanted : kEachBlocks), kEachThreads};
}
inline Grid grid_of_elements(int64_t n, bool wide) { return grid_of_pieces(wide ? (n + kWide - 1) / kWide : n); }

// Without the code for elements that are left at the end: rows are whole.
template <class F>
struct InWholeChunks {
    F f;
    template <int W>
    __device__ void at(int64_t i) const {
        if constexpr (W == kWide) f.template at<W>(i);
    }
};

// One at a time.
template <class F>
void for_each(Stream stream, int64_t n, const F& f) {
    if (n > 0) launch(each_kernel<1, F>, grid_of_elements(n, false), stream, n, f);
}
// wide: whether f.at<kWide>() may be called for multiples of kWide.
template <class F>
void for_each(Stream stream, int64_t n, bool wide, const F& f) {
    if (!wide) return for_each(stream, n, f);
    if (n > 0) launch(each_kernel<kWide, F>, grid_of_elements(n, true), stream, n, f);
}

// f(first row, elements) on parts of `rows` rows [n] of fewer than 2^31 elements each, which are divided into rows by 32 bits. A
// division of 64 bits takes the registers that the elements need, and several times as long.
template <class F>
void for_parts_of_rows(int64_t rows, int64_t n, F f) {
    const int64_t most = n > 0 && n <= INT32_MAX ? INT32_MAX / n : rows;
    for (int64_t first = 0; first < rows; first += most) f(first, (rows - first < most ? rows - first : most) * n);
}
// functor(first row) on each part.
template <class F>
void for_each_of_rows(Stream stream, int64_t rows, int64_t n, const F& functor) {
    for_parts_of_rows(rows, n, [&](int64_t first, int64_t elements) { for_each(stream, elements, functor(first)); });
}
template <class F>
void for_each_of_rows(Stream stream, int64_t rows, int64_t n, bool wide, const F& functor) {
    if (!wide) return for_each_of_rows(stream, rows, n, functor);
    for_parts_of_rows(rows, n, [&](int64_t first, int64_t elements) {
        for_each(stream, elements, true, InWholeChunks<decltype(functor(first))>{functor(first)});
    });
}

}  // namespace lockstep::kernels::gpu
