#include "kernels/gpu/loss.h"

#include "kernels/gpu/rows.h"

namespace lockstep::kernels::gpu {
namespace {

// e^(x - shift) of a row's logits. L: how they are stored. Of 16 bits a factor and a difference are one multiply-add.
template <class L>
class RelativeTo {
public:
    __device__ explicit RelativeTo(float shift) : shift_(sizeof(L) == 2 ? shift * kLog2E : shift) {}
    __device__ float operator()(float x) const {
        if constexpr (sizeof(L) == 2) return power_of_two(fmaf(x, kLog2E, -shift_));
        else return expf(x - shift_);
    }

private:
    float shift_;
};

template <int Threads, int W, class L>
__global__ void __launch_bounds__(kBlock) row_max_kernel(int64_t rows, int n, const L* logits, float* m) {
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

template <int Threads, int W, class L>
__global__ void __launch_bounds__(kBlock) cross_entropy_kernel(int64_t rows, int n, const L* logits, const float* m,
                                                               const int32_t* targets, int64_t first_id, float* z, float* t) {
    __shared__ float parts[kBlock / kLanes];
    const int64_t row = first_row<Threads>();
    if (row >= rows) return;
    const L* const x = logits + row * n;
    const RelativeTo<L> power(m[row]);
    float sum = 0;
    for_pieces<Threads, W>(n, [&](int, int i) {
        const Floats<W> v = load<W>(x + i);
        UNROLL
        for (int j = 0; j < W; ++j) sum += power(v[j]);
    });
    sum = sum_over<Threads>(sum, parts);
    if (thread() % Threads != 0) return;
    const int64_t column = targets[row] - first_id;
    z[row] = sum;
    t[row] = targets[row] >= 0 && column >= 0 && column < n ? widen(x[column]) : 0.0f;
}

template <int Threads, int W, class L, class T>
__global__ void __launch_bounds__(kBlock)
    cross_entropy_backward_kernel(int64_t rows, int n, const float* d_z, const float* d_t, const L* logits, const float* m,
                                  const int32_t* targets, int64_t first_id, T* d_logits) {
    const int64_t row = first_row<Threads>();
    if (row >= rows) return;
    const RelativeTo<L> power(m[row]);
    const float of_z = d_z[row], of_t = d_t[row];
    const int64_t column = targets[row] < 0 ? -1 : targets[row] - first_id;
    for_pieces<Threads, W>(n, [&](int, int i) {
        Floats<W> v = load<W>(logits + row * n + i);
        UNROLL
        for (int j = 0; j < W; ++j) v[j] = power(v[j]) * of_z + (i + j == column ? of_t : 0.0f);
        store(d_logits + row * n + i, v);
    });
}

[[maybe_unused]] constexpr int kAhead = 4;  // pieces of a row that a thread loads at once

// Logits of a row that a block of the gradient keeps in shared memory. Two blocks of 512 threads have a row of 57,344 logits of 16
// bits each: of sm_90's 227 KiB; others then have one such block in a processor.
template <class L>
int64_t most_held(int threads) {
    constexpr int64_t kOfTwo = 112 << 10;
    const int64_t most = int64_t{most_shared_bytes()} - 1024;
    return (threads == 512 ? (kOfTwo < most ? kOfTwo : most) : most * threads / 1024) / static_cast<int64_t>(sizeof(L));
}

// A block has a row and keeps what its shared memory holds of it: the row comes from memory once, and what is left of it a
// second time, from the cache if it is short. Each thread finds its own maximum and sum in one pass (Milakov, Gimelshein,
// 2018). `held`: elements, of whole passes of the block.
template <int Threads, int W, class L, class T>
__global__ void __launch_bounds__(Threads, 1024 / Threads)
    cross_entropy_gradient_kernel(int n, int held, const float* d_nll, const float* d_t, const L* logits, const int32_t* targets,
                                  float* m, float* z, float* t, T* d_logits) {
    __shared__ float parts[Threads / kLanes];
    SHARED_MEMORY(L, row_held);
    const int64_t row = block();
    const L* const x = logits + row * n;
    const int column = targets[row] >= 0 && targets[row] < n ? targets[row] : -1;
    const float of_target = column >= 0 ? widen(x[column]) : 0.0f;  // before the gradient is in its place
    const int begin = static_cast<int>(thread()) * W, end_held = held < n ? held : n;
    constexpr int kPass = Threads * W;

    float most = -INFINITY, sum = 0;
    RelativeTo<L> power(0);  // of padding, which adds nothing
    const auto add = [&](const Stored<W, L>& piece) {
        const Floats<W> v = widened(piece);
        float most_here = v[0];
        UNROLL
        for (int j = 1; j < W; ++j) most_here = fmaxf(most_here, v[j]);
        if (most_here > most) {
            sum *= exponential<L>(most, most_here);
            most = most_here, power = RelativeTo<L>(most);
        }
        UNROLL
        for (int j = 0; j < W; ++j) sum += power(v[j]);
    };
    int i = begin;
    UNROLL_BY(kAhead)  // pieces that are on their way while exponentials are made
    for (; i < end_held; i += kPass) {
        const Stored<W, L> piece = load_stored<W>(x + i);
        store_stored(row_held + i, piece);
        add(piece);
    }
    UNROLL_BY(kAhead)
    for (; i < n; i += kPass) add(load_stored<W>(x + i));

    const float most_of_row = reduce_over<Threads>(most, parts, [](float a, float b) { return fmaxf(a, b); });
    const float total = sum_over<Threads>(most == -INFINITY ? sum : sum * exponential<L>(most, most_of_row), parts);
    if (thread() == 0) m[row] = most_of_row, z[row] = total, t[row] = of_target;
    const float of_z = d_nll[row] * (1.0f / total), of_t = d_t[row];
    power = RelativeTo<L>(most_of_row);
    const auto write = [&](int at, const Stored<W, L>& piece) {
        Floats<W> v = widened(piece);
        UNROLL
        for (int j = 0; j < W; ++j) v[j] = power(v[j]) * of_z;
        store(d_logits + row * n + at, v);
    };
    for (i = begin; i < end_held; i += kPass) write(i, load_stored<W>(row_held + i));
    for (; i < n; i += kPass) write(i, load_stored<W>(x + i));
    // The thread whose piece has the target.
    if (column >= 0 && column / W % Threads == static_cast<int>(thread()))
        d_logits[row * n + column] = narrow<T>(power(of_target) * of_z + of_t);
}

// A block of 1,024 threads for each processor, two of 512, or four of 256.
template <int Threads, int W, class L, class T>
void start_gradient(Stream stream, int64_t rows, int64_t n, const float* d_nll, const float* d_t, const L* logits,
                    const int32_t* targets, float* m, float* z, float* t, T* d_logits) {
    constexpr int64_t kPass = Threads * W;
    const int64_t most = most_held<L>(Threads) / kPass * kPass, held = n < most ? (n + kPass - 1) / kPass * kPass : most;
    launch(cross_entropy_gradient_kernel<Threads, W, L, T>,
           {static_cast<unsigned>(rows), Threads, static_cast<unsigned>(held * int64_t{sizeof(L)})}, stream, n, held, d_nll, d_t,
           logits, targets, m, z, t, d_logits);
}

}  // namespace

template <class L>
void row_max(Stream stream, int64_t rows, int64_t n, const L* logits, float* m) {
    if (rows == 0) return;
    by_shape(n, is_wide(n, logits), [&]<int Threads, int W>() {
        launch(row_max_kernel<Threads, W, L>, grid_of_rows(rows, Threads), stream, rows, n, logits, m);
    });
}

template <class L>
void cross_entropy(Stream stream, int64_t rows, int64_t n, const L* logits, const float* m, const int32_t* targets,
                   int64_t first_id, float* z, float* t) {
    if (rows == 0) return;
    by_shape(n, is_wide(n, logits), [&]<int Threads, int W>() {
        launch(cross_entropy_kernel<Threads, W, L>, grid_of_rows(rows, Threads), stream, rows, n, logits, m, targets, first_id, z,
               t);
    });
}

template <class L, class T>
void cross_entropy_backward(Stream stream, int64_t rows, int64_t n, const float* d_z, const float* d_t, const L* logits,
                            const float* m, const int32_t* targets, int64_t first_id, T* d_logits) {
    if (rows == 0) return;
    by_shape(n, is_wide(n, logits, d_logits), [&]<int Threads, int W>() {
        launch(cross_entropy_backward_kernel<Threads, W, L, T>, grid_of_rows(rows, Threads), stream, rows, n, d_z, d_t, logits, m,
               targets, first_id, d_logits);
    });
}

template <class L, class T>
void cross_entropy_gradient(Stream stream, int64_t rows, int64_t n, const float* d_nll, const float* d_t, const L* logits,
                            const int32_t* targets, float* m, float* z, float* t, T* d_logits) {
    if (rows == 0) return;
    const auto start = [&]<int Threads, int W>() {
        start_gradient<Threads, W>(stream, rows, n, d_nll, d_t, logits, targets, m, z, t, d_logits);
    };
    if (!is_wide(n, logits, d_logits)) start.template operator()<256, 1>();
    else if (n <= 256 * kHeld * kWide) start.template operator()<256, kWide>();
    else if (n <= most_held<L>(512) && sizeof(L) == 2) {
        if constexpr (sizeof(L) == 2) start.template operator()<512, kWide>();
    } else start.template operator()<1024, kWide>();
}

#define COPY(L)                                                           \
    template void row_max<L>(Stream, int64_t, int64_t, const L*, float*); \
    template void cross_entropy<L>(Stream, int64_t, int64_t, const L*, const float*, const int32_t*, int64_t, float*, float*);
LOCKSTEP_OF_ONE_TYPE(COPY)
#undef COPY
#define COPY(L, T)                                                                                                             \
    template void cross_entropy_backward<L, T>(Stream, int64_t, int64_t, const float*, const float*, const L*, const float*,   \
                                               const int32_t*, int64_t, T*);                                                   \
    template void cross_entropy_gradient<L, T>(Stream, int64_t, int64_t, const float*, const float*, const L*, const int32_t*, \
                                               float*, float*, float*, T*);
LOCKSTEP_ON_STREAM(COPY)
#undef COPY

}  // namespace lockstep::kernels::gpu
