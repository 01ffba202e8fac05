#include "kernels/gpu/columns.h"

#include "kernels/gpu/gelu.h"
#include "kernels/gpu/rows.h"

namespace lockstep::kernels::gpu {
namespace {

constexpr int kGroups = 32;

// A block has as many columns as a warp has lanes; a warp has a group of rows.
__global__ void __launch_bounds__(kGroups* kLanes)
    add_columns_kernel(int count, int n, int column_blocks, const float* sums, bool adds, float* out, float* second) {
    __shared__ float parts[kGroups][kLanes];
    const int lane = static_cast<int>(thread() % kLanes), group = static_cast<int>(thread() / kLanes);
    const int which = static_cast<int>(block()) / column_blocks, i = static_cast<int>(block()) % column_blocks * kLanes + lane;
    const int rows = (count + kGroups - 1) / kGroups, begin = group * rows, end = begin + rows < count ? begin + rows : count;
    const float* const of_columns = sums + static_cast<int64_t>(which) * count * n;
    float sum = 0;
    if (i < n) {
        UNROLL_BY(8)
        for (int k = begin; k < end; ++k) sum += of_columns[static_cast<int64_t>(k) * n + i];
    }
    parts[group][lane] = sum;
    block_barrier();
    if (group != 0 || i >= n) return;
    float total = adds && which == 0 ? out[i] : 0.0f;
    UNROLL
    for (int g = 0; g < kGroups; ++g) total += parts[g][lane];
    (which == 0 ? out : second)[i] = total;
}

// A kernel's rows: kAhead of a thread are loaded at once, and kBlocks of its blocks fit into a processor.
template <class T>
struct Rows {
    static constexpr int kAhead = 4, kBlocks = 5;
    const T* x;
    template <int W>
    __device__ Floats<W> at(int64_t row, int n, int i) const {
        return load<W>(x + row * n + i);
    }
};

template <class T>
struct GeluRows {
    static constexpr int kAhead = 1, kBlocks = sizeof(T) == 2 ? 5 : 4;
    const T *dy, *x, *b;
    T* dx;
    template <int W>
    __device__ Floats<W> at(int64_t row, int n, int i) const {
        Floats<W> d = load<W>(dy + row * n + i);
        const Floats<W> v = load<W>(x + row * n + i), of_column = load<W>(b + i);
        UNROLL
        for (int j = 0; j < W; ++j) d[j] *= gelu_slope<T>(v[j] + of_column[j]);
        store(dx + row * n + i, d);
        return d;
    }
};

// A block has 32 W columns, a warp each eighth row of the block's group. A thread adds up W columns of its rows, of which several
// are on their way at once; then the warps' sums are added in order.
template <int W, class R>
__global__ void __launch_bounds__(kBlock, R::kBlocks)
    sum_rows_kernel(int64_t rows, int n, unsigned parts_of_row, R x, bool adds, float* sums) {
    __shared__ float of_warps[kRowsOfBlock][kLanes * W];
    const int lane = static_cast<int>(thread() % kLanes) * W, warp = static_cast<int>(thread() / kLanes);
    const int i = static_cast<int>(block() % parts_of_row) * kLanes * W + lane;
    const int64_t group = block() / parts_of_row, step = blocks() / parts_of_row * kRowsOfBlock;
    Floats<W> sum = {};
    if (i < n) {
        UNROLL_BY(R::kAhead)
        for (int64_t row = group * kRowsOfBlock + warp; row < rows; row += step) {
            const Floats<W> v = x.template at<W>(row, n, i);
            UNROLL
            for (int j = 0; j < W; ++j) sum[j] += v[j];
        }
    }
    UNROLL
    for (int j = 0; j < W; ++j) of_warps[warp][lane + j] = sum[j];
    block_barrier();
    const int column = static_cast<int>(thread()), at = i - lane + column;
    if (column >= kLanes * W || at >= n) return;
    float* const to = sums + group * n + at;
    float total = adds ? *to : 0.0f;
    UNROLL
    for (int k = 0; k < kRowsOfBlock; ++k) total += of_warps[k][column];
    *to = total;
}

template <class R>
void start(Stream stream, int64_t rows, int64_t n, bool wide, const R& x, bool adds, float* out, float* sums) {
    const int64_t count = groups_of_rows(rows, n), columns = wide ? kColumnsOfBlock : kLanes, parts = (n + columns - 1) / columns;
    const Grid grid = {static_cast<unsigned>(count * parts), kBlock};
    const auto kernel = wide ? sum_rows_kernel<kWide, R> : sum_rows_kernel<1, R>;
    if (count == 1) return launch(kernel, grid, stream, rows, n, parts, x, adds, out);
    if (count > 0) launch(kernel, grid, stream, rows, n, parts, x, false, sums);
    add_columns(stream, count, n, sums, adds, out);
}

}  // namespace

void add_columns(Stream stream, int64_t count, int64_t n, const float* sums, bool adds, float* out, float* second) {
    const int64_t column_blocks = (n + kLanes - 1) / kLanes;
    launch(add_columns_kernel, {static_cast<unsigned>(column_blocks * (second ? 2 : 1)), kGroups * kLanes}, stream, count, n,
           column_blocks, sums, adds, out, second);
}

template <class T>
void sum_rows(Stream stream, int64_t rows, int64_t n, const T* x, float* out, bool adds, void* sums) {
    start(stream, rows, n, is_wide(n, x), Rows<T>{x}, adds, out, static_cast<float*>(sums));
}
template <class T>
void bias_gelu_backward(Stream stream, int64_t rows, int64_t n, const T* dy, const T* x, const T* b, T* dx, float* db, bool adds,
                        void* sums) {
    start(stream, rows, n, is_wide(n, dy, x, b, dx), GeluRows<T>{dy, x, b, dx}, adds, db, static_cast<float*>(sums));
}

#define COPY(T)                                                                         \
    template void sum_rows<T>(Stream, int64_t, int64_t, const T*, float*, bool, void*); \
    template void bias_gelu_backward<T>(Stream, int64_t, int64_t, const T*, const T*, const T*, T*, float*, bool, void*);
LOCKSTEP_OF_ONE_TYPE(COPY)
#undef COPY

}  // namespace lockstep::kernels::gpu
