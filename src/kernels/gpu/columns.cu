#include "kernels/gpu/columns.h"

#include "kernels/gpu/gelu.h"
#include "kernels/gpu/rows.h"

namespace lockstep::kernels::gpu {
namespace {

__global__ void __launch_bounds__(kBlock) add_columns_kernel(int64_t count, int64_t n, const float* sums, bool adds, float* out) {
    const int64_t i = static_cast<int64_t>(block()) * kBlock + thread();
    if (i >= n) return;
    float sum = adds ? out[i] : 0.0f;
    for (int64_t k = 0; k < count; ++k) sum += sums[k * n + i];
    out[i] = sum;
}

template <class T>
struct Rows {
    const T* x;
    template <int W>
    __device__ Floats<W> at(int64_t row, int n, int i) const {
        return load<W>(x + row * n + i);
    }
};

template <class T>
struct GeluRows {
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

template <int Threads, int W, class R>
__global__ void __launch_bounds__(kBlock) sum_rows_kernel(int64_t rows, int n, R x, float* sums) {
    SHARED_MEMORY(float, shared);
    float* const own = sums + static_cast<int64_t>(block()) * n;
    ColumnSums<Threads, W> sum(own);
    bool first = true;
    for (int64_t row = first_row<Threads>(); row < rows; row += rows_at_once<Threads>(), first = false)
        for_pieces<Threads, W>(n, [&](int k, int i) { sum.add(k, i, x.template at<W>(row, n, i), first); });
    sum.write(n, own, shared);
}

template <class R>
void start(Stream stream, int64_t rows, int64_t n, bool wide, const R& x, bool adds, float* out, float* sums) {
    const int64_t count = blocks_of_sums(rows);
    by_shape(n, wide, [&]<int Threads, int W>() {
        const Grid grid = {static_cast<unsigned>(count), kBlock, shared_of_sums(Threads, n)};
        if (count > 0) launch(sum_rows_kernel<Threads, W, R>, grid, stream, rows, n, x, sums);
    });
    add_columns(stream, count, n, sums, adds, out);
}

}  // namespace

void add_columns(Stream stream, int64_t count, int64_t n, const float* sums, bool adds, float* out) {
    launch(add_columns_kernel, {static_cast<unsigned>((n + kBlock - 1) / kBlock), kBlock}, stream, count, n, sums, adds, out);
}

template <class T>
void sum_rows(Stream stream, int64_t rows, int64_t n, const T* x, float* out, bool adds, void* sums) {
    float* const own = static_cast<float*>(sums);
    start(stream, rows, n, is_wide(n, x, own), Rows<T>{x}, adds, out, own);
}
template <class T>
void bias_gelu_backward(Stream stream, int64_t rows, int64_t n, const T* dy, const T* x, const T* b, T* dx, float* db, bool adds,
                        void* sums) {
    float* const own = static_cast<float*>(sums);
    start(stream, rows, n, is_wide(n, dy, x, b, dx, own), GeluRows<T>{dy, x, b, dx}, adds, db, own);
}

#define COPY(T)                                                                         \
    template void sum_rows<T>(Stream, int64_t, int64_t, const T*, float*, bool, void*); \
    template void bias_gelu_backward<T>(Stream, int64_t, int64_t, const T*, const T*, const T*, T*, float*, bool, void*);
LOCKSTEP_OF_ONE_TYPE(COPY)
#undef COPY

}  // namespace lockstep::kernels::gpu
