#include "kernels/gpu/loss.h"

#include "kernels/gpu/rows.h"

namespace lockstep::kernels::gpu {
namespace {

template <int Threads, int W>
__global__ void __launch_bounds__(kBlock) row_max_kernel(int64_t rows, int n, const float* logits, float* m) {
    __shared__ float parts[kBlock / kLanes];
    const int64_t row = first_row<Threads>();
    if (row >= rows) return;
    float most = -INFINITY;
    for_pieces<Threads, W>(n, [&](int, int i) {
        const Floats<W> x = load<W>(logits + row * n + i);
        UNROLL
        for (int j = 0; j < W; ++j) most = fmaxf(most, x[j]);
    });
    most = reduce_over<Threads>(most, parts, [](float a, float b) { return fmaxf(a, b); });
    if (thread() % Threads == 0) m[row] = most;
}

template <int Threads, int W>
__global__ void __launch_bounds__(kBlock) cross_entropy_kernel(int64_t rows, int n, const float* logits, const float* m,
                                                               const int32_t* targets, int64_t first_id, float* z, float* t) {
    __shared__ float parts[kBlock / kLanes];
    const int64_t row = first_row<Threads>();
    if (row >= rows) return;
    const float* const x = logits + row * n;
    const float most = m[row];
    float sum = 0;
    for_pieces<Threads, W>(n, [&](int, int i) {
        const Floats<W> v = load<W>(x + i);
        UNROLL
        for (int j = 0; j < W; ++j) sum += expf(v[j] - most);
    });
    sum = sum_over<Threads>(sum, parts);
    if (thread() % Threads != 0) return;
    const int64_t column = targets[row] - first_id;
    z[row] = sum;
    t[row] = targets[row] >= 0 && column >= 0 && column < n ? x[column] : 0.0f;
}

template <int Threads, int W, class T>
__global__ void __launch_bounds__(kBlock)
    cross_entropy_backward_kernel(int64_t rows, int n, const float* d_z, const float* d_t, const float* logits, const float* m,
                                  const int32_t* targets, int64_t first_id, T* d_logits) {
    const int64_t row = first_row<Threads>();
    if (row >= rows) return;
    const float most = m[row], of_z = d_z[row], of_t = d_t[row];
    const int64_t column = targets[row] < 0 ? -1 : targets[row] - first_id;
    for_pieces<Threads, W>(n, [&](int, int i) {
        Floats<W> v = load<W>(logits + row * n + i);
        UNROLL
        for (int j = 0; j < W; ++j) v[j] = expf(v[j] - most) * of_z + (i + j == column ? of_t : 0.0f);
        store(d_logits + row * n + i, v);
    });
}

}  // namespace

void row_max(Stream stream, int64_t rows, int64_t n, const float* logits, float* m) {
    if (rows == 0) return;
    by_shape(n, is_wide(n, logits), [&]<int Threads, int W>() {
        launch(row_max_kernel<Threads, W>, grid_of_rows(rows, Threads), stream, rows, n, logits, m);
    });
}

void cross_entropy(Stream stream, int64_t rows, int64_t n, const float* logits, const float* m, const int32_t* targets,
                   int64_t first_id, float* z, float* t) {
    if (rows == 0) return;
    by_shape(n, is_wide(n, logits), [&]<int Threads, int W>() {
        launch(cross_entropy_kernel<Threads, W>, grid_of_rows(rows, Threads), stream, rows, n, logits, m, targets, first_id, z,
               t);
    });
}

template <class T>
void cross_entropy_backward(Stream stream, int64_t rows, int64_t n, const float* d_z, const float* d_t, const float* logits,
                            const float* m, const int32_t* targets, int64_t first_id, T* d_logits) {
    if (rows == 0) return;
    by_shape(n, is_wide(n, logits, d_logits), [&]<int Threads, int W>() {
        launch(cross_entropy_backward_kernel<Threads, W, T>, grid_of_rows(rows, Threads), stream, rows, n, d_z, d_t, logits, m,
               targets, first_id, d_logits);
    });
}

#define COPY(T)                                                                                                               \
    template void cross_entropy_backward<T>(Stream, int64_t, int64_t, const float*, const float*, const float*, const float*, \
                                            const int32_t*, int64_t, T*);
LOCKSTEP_OF_ONE_TYPE(COPY)
#undef COPY

}  // namespace lockstep::kernels::gpu
