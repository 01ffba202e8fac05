// A block among those of all members: rows of `run_bytes`, `stride_bytes` apart.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace lockstep::comm {

// Writes `bytes` of a block, from its byte `first` on, to the rows of the block that begin at `to`.
inline void write_rows(std::byte* to, int64_t run_bytes, int64_t stride_bytes, int64_t first, const std::byte* from,
                       int64_t bytes) {
    while (bytes > 0) {
        const int64_t row = first / run_bytes, column = first % run_bytes, count = std::min(bytes, run_bytes - column);
        std::memcpy(to + row * stride_bytes + column, from, static_cast<size_t>(count));
        first += count, from += count, bytes -= count;
    }
}

}  // namespace lockstep::comm
