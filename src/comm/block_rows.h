// A block among those of all members: rows of `run_bytes`, `stride_bytes` apart.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace lockstep::comm {

// f(where in the rows, where in what is written, bytes) for each stretch of `bytes` of a block from its byte `first` on.
template <class F>
void for_rows(int64_t run_bytes, int64_t stride_bytes, int64_t first, int64_t bytes, F f) {
    for (int64_t at = 0; at < bytes;) {
        const int64_t row = (first + at) / run_bytes, column = (first + at) % run_bytes,
                      count = std::min(bytes - at, run_bytes - column);
        f(row * stride_bytes + column, at, count);
        at += count;
    }
}

// Writes `bytes` of a block, from its byte `first` on, to the rows of the block that begin at `to`.
inline void write_rows(std::byte* to, int64_t run_bytes, int64_t stride_bytes, int64_t first, const std::byte* from,
                       int64_t bytes) {
    for_rows(run_bytes, stride_bytes, first, bytes,
             [&](int64_t place, int64_t at, int64_t count) { std::memcpy(to + place, from + at, static_cast<size_t>(count)); });
}

}  // namespace lockstep::comm
