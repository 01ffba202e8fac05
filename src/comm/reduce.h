// The arithmetic of reductions on plain arrays, for every transport that reduces on a CPU.
// A transport reduces members in ascending position: combine(combine(member 0, member 1), member 2) and so on; of level s > 1
// so each s members that follow each other, then their results.
// Compiled without -ffast-math: the maximum looks for NaN.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "comm/communicator.h"

namespace lockstep::comm {

// out[i] = a[i] op b[i] for i in 0 .. count. out may be a or b, and does not overlap them otherwise.
void combine(Dtype type, ReduceOp op, const void* a, const void* b, void* out, int64_t count);

// A few chunks fit in L2. Not tuned closely: on 2 loaded cores of AMD Zen 4 (1 MiB of L2 each), reductions of 32 MiB out of
// place were slower with 256 KiB (as a ratio to memcpy of the same run); 16 and 64 KiB gave the same.
inline constexpr int64_t kChunkBytes = 64 * 1024;

// Reduces `count` elements of in(0) .. in(members - 1), one chunk at a time, and hands each finished one to
// store(chunk, its offset in the ins in bytes, elements). Nothing is stored before its inputs are read: outs may be ins.
template <class In, class Store>
void reduce_in_chunks(Dtype type, ReduceOp op, int members, int level, In in, int64_t count, Store store) {
    alignas(64) std::byte buffers[2][kChunkBytes];
    const int64_t element_bytes = bytes_of(type), chunk = kChunkBytes / element_bytes;
    for (int64_t done = 0; done < count; done += chunk) {
        const int64_t elements = std::min(chunk, count - done), at_bytes = done * element_bytes;
        const auto reduced = [&](int first, int end, std::byte* buffer) {
            const std::byte* sum = in(first) + at_bytes;
            for (int k = first + 1; k < end; ++k) {
                combine(type, op, sum, in(k) + at_bytes, buffer, elements);
                sum = buffer;
            }
            return sum;
        };
        const int run = level > 1 ? level : members;
        const std::byte* sum = reduced(0, std::min(run, members), buffers[0]);
        for (int first = run; first < members; first += run) {
            combine(type, op, sum, reduced(first, std::min(first + run, members), buffers[1]), buffers[0], elements);
            sum = buffers[0];
        }
        store(sum, at_bytes, elements);
    }
}

}  // namespace lockstep::comm
