// What moves elements and does not look at them, and sums over ranks. No pointer needs to be aligned to more than its elements.
#pragma once

#include "base/dtype.h"
#include "kernels/gpu/types.h"

namespace lockstep::kernels::gpu {

// `count` rows of `bytes`. Strides: from where a row begins to where the next one does, in bytes.
struct RowsOfBytes {
    int64_t count, bytes, from_stride, to_stride;
};
// `to` overlaps `from` nowhere, or is `from` itself: then nothing moves.
void copy_rows(Stream stream, const RowsOfBytes& rows, const void* from, void* to);
void copy(Stream stream, int64_t bytes, const void* from, void* to);
void fill_zero(Stream stream, int64_t bytes, void* to);

// Each of `count` matrices x [rows, columns] becomes [columns, rows].
void transpose(Stream stream, int64_t count, int64_t rows, int64_t columns, const float* x, float* out);

// Row i of x [count, row bytes] becomes row positions[i] of its sequence, each of which has `seq` rows of x and `length` of the
// cache. Other positions are written nowhere.
struct Append {
    int64_t count, seq, length, row_bytes;
};
void append(Stream stream, const Append& shape, const int32_t* positions, const void* x, void* cache);

// What each rank has is combined in ascending order, and rounded after each, as comm/reduce.h has it; `level` > 1: of each so
// many ranks that follow each other first, then their results.
struct Reduction {
    static constexpr int kMost = 64;
    Dtype type;
    bool is_max = false;  // of NaNs the first; else the sum
    int ranks, level = 1, results = 1;
    bool accumulate = false;  // results: what they hold comes first
    const void* in[kMost];    // may be results, element for element
    void* out[kMost];         // each gets the same
};
void reduce(Stream stream, int64_t n, const Reduction& reduction);

}  // namespace lockstep::kernels::gpu
