// Sums over rows, which are gradients of parameters: blocks add up rows, then the sums of the blocks are added in their order.
#pragma once

#include "kernels/gpu/types.h"

namespace lockstep::kernels::gpu {

// Each of these blocks adds up its rows. Their number does not depend on the device, so that sums have one order everywhere; an
// H100 has 132 processors.
inline int64_t blocks_of_sums(int64_t rows) { return rows < 264 ? rows : 264; }
inline int64_t sum_rows_workspace_bytes(int64_t rows, int64_t n) {
    return blocks_of_sums(rows) * n * static_cast<int64_t>(sizeof(float));
}

// out [n] = or += the columns of sums [count, n], in ascending order.
void add_columns(Stream stream, int64_t count, int64_t n, const float* sums, bool adds, float* out);

// Beyond, the sums of all blocks would take more than a gigabyte.
inline constexpr int64_t kMostColumns = 1 << 20;

// out [n] = or += the columns of x [rows, n]. sums: sum_rows_workspace_bytes.
template <class T>
void sum_rows(Stream stream, int64_t rows, int64_t n, const T* x, float* out, bool adds, void* sums);

// dx = dy gelu'(x + b), and db [n] = or += its columns. x, dy, dx: [rows, n]; dx may alias dy. sums as above.
template <class T>
void bias_gelu_backward(Stream stream, int64_t rows, int64_t n, const T* dy, const T* x, const T* b, T* dx, float* db, bool adds,
                        void* sums);

}  // namespace lockstep::kernels::gpu
