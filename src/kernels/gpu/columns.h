// Sums over rows, which are gradients of parameters: blocks add up rows, then the sums of the blocks are added in their order.
#pragma once

#include "kernels/gpu/types.h"

namespace lockstep::kernels::gpu {

// Rows are divided into so many groups, each of which makes one sum [n]: together with the parts of a row that is work for all
// processors. Their number does not depend on the device, so that sums have one order everywhere.
inline constexpr int64_t kColumnsOfBlock = 256, kRowsOfBlock = 8, kMostGroups = 2 * kProcessors;
inline int64_t groups_of_rows(int64_t rows, int64_t n) {
    const int64_t parts = n > kColumnsOfBlock ? (n + kColumnsOfBlock - 1) / kColumnsOfBlock : 1;
    const int64_t for_all = 5 * kProcessors / parts, wanted = (rows + kRowsOfBlock - 1) / kRowsOfBlock;
    const int64_t most = for_all < 1 ? 1 : for_all < kMostGroups ? for_all : kMostGroups;
    return wanted < most ? wanted : most;
}
inline int64_t sum_rows_workspace_bytes(int64_t rows, int64_t n) {
    const int64_t groups = groups_of_rows(rows, n);  // a single one adds to the result
    return groups > 1 ? groups * n * static_cast<int64_t>(sizeof(float)) : 0;
}

// out [n] = or += the columns of sums [count, n]. Where there is a second one: it = the columns of what is behind, [count, n] too.
// Each of 32 groups of rows is added in ascending order, then the groups are.
void add_columns(Stream stream, int64_t count, int64_t n, const float* sums, bool adds, float* out, float* second = nullptr);

// Beyond, sums over rows are products as others are (any_type.h).
inline constexpr int64_t kMostColumns = 1 << 20;

// out [n] = or += the columns of x [rows, n]. sums: sum_rows_workspace_bytes.
template <class T>
void sum_rows(Stream stream, int64_t rows, int64_t n, const T* x, float* out, bool adds, void* sums);

// dx = dy gelu'(x + b), and db [n] = or += its columns. x, dy, dx: [rows, n]; dx may alias dy. sums as above.
template <class T>
void bias_gelu_backward(Stream stream, int64_t rows, int64_t n, const T* dy, const T* x, const T* b, T* dx, float* db, bool adds,
                        void* sums);

}  // namespace lockstep::kernels::gpu
