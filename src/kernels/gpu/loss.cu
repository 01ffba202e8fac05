#include "kernels/gpu/loss.h"

#include "kernels/gpu/rows.h"

namespace lockstep::kernels::gpu {
namespace {

template <int Threads, int W, class S>
__global__ void __launch_bounds__(kBlock) row_max_kernel(int64_t rows, int n, const S* logits, float* m) {
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

template <int Threads, int W, class S>
__global__ void __launch_bounds__(kBlock) cross_entropy_kernel(int64_t rows, int n, const S* logits, const float* m,
                                                               const int32_t* targets, int64_t first_id, float* z, float* t) {
    __shared__ float parts[kBlock / kLanes];
    const int64_t row = first_row<Threads>();
    if (row >= rows) return;
    const S* const x = logits + row * n;
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
    t[row] = targets[row] >= 0 && column >= 0 && column < n ? static_cast<float>(x[column]) : 0.0f;
}

template <int Threads, int W, class S, class T>
__global__ void __launch_bounds__(kBlock)
    cross_entropy_backward_kernel(int64_t rows, int n, const float* d_z, const float* d_t, const S* logits, const float* m,
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

// A block has a row and keeps what its shared memory holds of it: the row comes from memory once, and what is left of it a
// second time, from the cache if it is short. Each thread finds its own maximum and sum in one pass (Milakov, Gimelshein,
// 2018). `held`: elements, of whole passes of the block.
template <int Threads, int W, class S, class T>
__global__ void __launch_bounds__(Threads)
    cross_entropy_gradient_kernel(int n, int held, const float* d_nll, const float* d_t, const S* logits, const int32_t* targets,
                                  float* m, float* z, float* t, T* d_logits) {
    __shared__ float parts[Threads / kLanes];
    SHARED_MEMORY(S, row_held);
    const int64_t row = block();
    const S* const x = logits + row * n;
    const int column = targets[row] >= 0 && targets[row] < n ? targets[row] : -1;
    const float of_target = column >= 0 ? static_cast<float>(x[column]) : 0.0f;  // before the gradient is in its place
    const int begin = static_cast<int>(thread()) * W;
    float most = -INFINITY, sum = 0;
    Floats<W> next = {};
    if (begin < n) next = load<W>(x + begin);
    for (int i = begin; i < n; i += Threads * W) {
        const Floats<W> v = next;
        if (i + Threads * W < n) next = load<W>(x + i + Threads * W);  // under way while exponentials are made
        if (i < held) store(row_held + i, v);
        float most_here = v[0];
        UNROLL
        for (int j = 1; j < W; ++j) most_here = fmaxf(most_here, v[j]);
        if (most_here > most) sum *= expf(most - most_here), most = most_here;
        const float shift = most == -INFINITY ? 0.0f : most;  // of padding, which adds nothing
        UNROLL
        for (int j = 0; j < W; ++j) sum += expf(v[j] - shift);
    }
    const float most_of_row = reduce_over<Threads>(most, parts, [](float a, float b) { return fmaxf(a, b); });
    const float total = sum_over<Threads>(most == -INFINITY ? sum : sum * expf(most - most_of_row), parts);
    if (thread() == 0) m[row] = most_of_row, z[row] = total, t[row] = of_target;
    const float of_z = d_nll[row] * (1.0f / total), of_t = d_t[row];
    for (int i = begin; i < n; i += Threads * W) {
        Floats<W> v = i < held ? load<W>(row_held + i) : load<W>(x + i);
        UNROLL
        for (int j = 0; j < W; ++j) v[j] = expf(v[j] - most_of_row) * of_z + (i + j == column ? of_t : 0.0f);
        store(d_logits + row * n + i, v);
    }
}

// A block of 1,024 threads for each processor, or four of 256.
template <int Threads, int W, class S, class T>
void start_gradient(Stream stream, int64_t rows, int64_t n, const float* d_nll, const float* d_t, const S* logits,
                    const int32_t* targets, float* m, float* z, float* t, T* d_logits) {
    constexpr int64_t kPass = Threads * W;
    const int64_t most = int64_t{most_shared_bytes() - 1024} * Threads / 1024 / int64_t{sizeof(S)} / kPass * kPass,
                  held = n < most ? (n + kPass - 1) / kPass * kPass : most;
    launch(cross_entropy_gradient_kernel<Threads, W, S, T>,
           {static_cast<unsigned>(rows), Threads, static_cast<unsigned>(held * int64_t{sizeof(S)})}, stream, n, held, d_nll, d_t,
           logits, targets, m, z, t, d_logits);
}

}  // namespace

template <class S>
void row_max(Stream stream, int64_t rows, int64_t n, const S* logits, float* m) {
    if (rows == 0) return;
    by_shape(n, is_wide(n, logits), [&]<int Threads, int W>() {
        launch(row_max_kernel<Threads, W, S>, grid_of_rows(rows, Threads), stream, rows, n, logits, m);
    });
}

template <class S>
void cross_entropy(Stream stream, int64_t rows, int64_t n, const S* logits, const float* m, const int32_t* targets,
                   int64_t first_id, float* z, float* t) {
    if (rows == 0) return;
    by_shape(n, is_wide(n, logits), [&]<int Threads, int W>() {
        launch(cross_entropy_kernel<Threads, W, S>, grid_of_rows(rows, Threads), stream, rows, n, logits, m, targets, first_id, z,
               t);
    });
}

template <class S, class T>
void cross_entropy_backward(Stream stream, int64_t rows, int64_t n, const float* d_z, const float* d_t, const S* logits,
                            const float* m, const int32_t* targets, int64_t first_id, T* d_logits) {
    if (rows == 0) return;
    by_shape(n, is_wide(n, logits, d_logits), [&]<int Threads, int W>() {
        launch(cross_entropy_backward_kernel<Threads, W, S, T>, grid_of_rows(rows, Threads), stream, rows, n, d_z, d_t, logits, m,
               targets, first_id, d_logits);
    });
}

template <class S, class T>
void cross_entropy_gradient(Stream stream, int64_t rows, int64_t n, const float* d_nll, const float* d_t, const S* logits,
                            const int32_t* targets, float* m, float* z, float* t, T* d_logits) {
    if (rows == 0) return;
    const auto start = [&]<int Threads, int W>() {
        start_gradient<Threads, W>(stream, rows, n, d_nll, d_t, logits, targets, m, z, t, d_logits);
    };
    if (!is_wide(n, logits, d_logits)) start.template operator()<256, 1>();
    else if (n <= 256 * kHeld * kWide) start.template operator()<256, kWide>();
    else start.template operator()<1024, kWide>();
}

#define COPY(S)                                                           \
    template void row_max<S>(Stream, int64_t, int64_t, const S*, float*); \
    template void cross_entropy<S>(Stream, int64_t, int64_t, const S*, const float*, const int32_t*, int64_t, float*, float*);
LOCKSTEP_OF_ONE_TYPE(COPY)
#undef COPY
#define COPY(S, T)                                                                                                             \
    template void cross_entropy_backward<S, T>(Stream, int64_t, int64_t, const float*, const float*, const S*, const float*,   \
                                               const int32_t*, int64_t, T*);                                                   \
    template void cross_entropy_gradient<S, T>(Stream, int64_t, int64_t, const float*, const float*, const S*, const int32_t*, \
                                               float*, float*, float*, T*);
LOCKSTEP_ON_STREAM(COPY)
#undef COPY

}  // namespace lockstep::kernels::gpu
