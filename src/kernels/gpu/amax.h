// The largest sizes of groups of elements, found by the kernel that makes the elements: their memory is not read for it.
#pragma once

#include "kernels/gpu/float8_walks.h"

namespace lockstep::kernels::gpu {

// Of elements that are stored as T. All lanes of a warp have elements of the same group, and call begin and end together. Rounding
// keeps the order of sizes, so that only the largest one is rounded.
template <class T>
struct AmaxOfGroups {
    int* amax;
    int64_t group = -1;
    int most = 0;

    __device__ void begin(int64_t next) {
        if (next == group) return;
        end();
        group = next, most = 0;
    }
    template <int W>
    __device__ void take(const Floats<W>& x) {
        most = larger(most, largest_size(x));
    }
    __device__ void end() const {
        if (group < 0) return;
        int all = most;
        UNROLL
        for (int mask = kLanes / 2; mask > 0; mask /= 2) all = larger(all, shuffle_xor(all, mask));
        if (thread() % kLanes == 0) raise_to(amax + group, size_of(widen(narrow<T>(std::bit_cast<float>(all)))));
    }
};

// What a kernel of rows is asked for: the sizes of groups of whole rows.
template <class T>
struct AmaxOfRows {
    Grouping groups;
    int64_t rows;  // of a run
    int* amax;
    __device__ AmaxOfGroups<T> start() const { return {amax}; }
    __device__ int64_t group(int64_t row) const { return groups.count == 1 ? 0 : group_of(groups, row / rows); }
};

// None.
struct NoAmax {
    __device__ NoAmax start() const { return {}; }
    __device__ int64_t group(int64_t) const { return 0; }
    __device__ void begin(int64_t) const {}
    template <int W>
    __device__ void take(const Floats<W>&) const {}
    __device__ void end() const {}
};

}  // namespace lockstep::kernels::gpu
