#include "kernels/gpu/float8.h"

#include "kernels/gpu/each.h"

namespace lockstep::kernels::gpu {
namespace {

constexpr int kCodes = 16;             // at once: codes of 16 bytes
constexpr int64_t kOfBlock = 1 << 14;  // elements of a run that a block takes at once

__device__ __forceinline__ int64_t group_of(const Grouping& g, int64_t run) {
    int64_t at = 0;
    for (int d = 0; d < g.dims; ++d) {
        const int64_t quotient = run / g.of[d].size, index = run - quotient * g.of[d].size;
        at += index / g.of[d].each * g.of[d].stride;
        run = quotient;
    }
    return at;
}

// f.begin(group), then f.at<W>(i) or f.at<1>(i) for this thread's elements of it. All threads of a block have the same groups.
template <int W, class F>
__device__ __forceinline__ void for_groups(int64_t n, const Grouping& g, F& f) {
    const int64_t parts = (g.run + kOfBlock - 1) / kOfBlock, all = n / g.run * parts;
    int64_t group = -1;
    for (int64_t part = block(); part < all; part += blocks()) {
        const int64_t run = part / parts, first = (part - run * parts) * kOfBlock;
        const int64_t own = g.count == 1 ? 0 : group_of(g, run);
        if (own != group) f.begin(own);
        group = own;
        const int64_t begin = run * g.run + first, length = g.run - first < kOfBlock ? g.run - first : kOfBlock;
        UNROLL_BY(2)
        for (int64_t i = static_cast<int64_t>(thread()) * W; i + W <= length; i += kEachThreads * W) f.template at<W>(begin + i);
        NO_UNROLL
        for (int64_t i = length / W * W + thread(); i < length; i += kEachThreads) f.template at<1>(begin + i);
    }
}
// Blocks for that many elements; whether W may be kCodes.
Grid grid_of(int64_t n, const Grouping& g) {
    const int64_t all = n / g.run * ((g.run + kOfBlock - 1) / kOfBlock);
    return {static_cast<unsigned>(all < kEachBlocks ? all : kEachBlocks), kEachThreads};
}
template <class... T>
bool may_be_wide(int64_t n, const Grouping& g, const T*... begins) {
    return (g.run == n || g.run % kCodes == 0) && is_wide(0, begins...);
}

// Bits of sizes are in the order of the sizes, as integers; those of NaN are above.
template <class T>
struct Largest {
    const T* x;
    int* amax;
    int* parts;
    int64_t group = -1;
    int most = 0;
    template <int W>
    __device__ void at(int64_t i) {
        const Floats<W> values = load<W>(x + i);
        UNROLL
        for (int j = 0; j < W; ++j) {
            const int size = static_cast<int>(std::bit_cast<uint32_t>(values[j]) & 0x7fffffffu);
            most = size > most ? size : most;
        }
    }
    __device__ void begin(int64_t next) {
        end();
        group = next, most = 0;
    }
    __device__ void end() const {
        if (group < 0) return;
        const int all = reduce_over<kEachThreads>(most, parts, [](int a, int b) { return a > b ? a : b; });
        if (thread() == 0) raise_to(amax + group, all);
    }
};
template <int W, class T>
__global__ void __launch_bounds__(kEachThreads) amax_kernel(int64_t n, Grouping groups, const T* x, int* amax) {
    __shared__ int parts[kEachThreads / kLanes];
    Largest<T> f{x, amax, parts};
    for_groups<W>(n, groups, f);
    f.end();
}

__global__ void round_kernel(Dtype type, float* x) {
    switch (type) {
        case Dtype::BF16: *x = widen(narrow<Bf16>(*x)); return;
        case Dtype::F16: *x = widen(narrow<F16>(*x)); return;
        default: return;
    }
}

// Two codes, the lower byte first.
template <class Q>
__device__ __forceinline__ uint16_t encode(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    // But for the sign of a NaN the bits are those of the constructor.
    uint16_t codes;
    if constexpr (Q::kHasInfinity) asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
    else asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
    return codes;
#else
    return static_cast<uint16_t>(Q(low).bits | Q(high).bits << 8);
#endif
}

template <class T, class Q>
struct Encoded {
    bool power_of_two;
    const T* x;
    const float* amax;
    Q* q;
    float scale = 0;
    __device__ void begin(int64_t group) { scale = scale_of(amax[group], Q::kLargest, power_of_two); }
    template <int W>
    __device__ void at(int64_t i) const {
        const Floats<W> values = load<W>(x + i);
        Stored<W, Q> codes;
        if constexpr (W == 1) {
            codes.v[0].bits = static_cast<uint8_t>(encode<Q>(values[0] * scale, 0.0f));
        } else {
            uint16_t pairs[W / 2];
            UNROLL
            for (int j = 0; j < W / 2; ++j) pairs[j] = encode<Q>(values[2 * j] * scale, values[2 * j + 1] * scale);
            memcpy(codes.v, pairs, sizeof pairs);
        }
        store_stored(q + i, codes);
    }
};
template <int W, class T, class Q>
__global__ void __launch_bounds__(kEachThreads)
    to_float8_kernel(int64_t n, Grouping groups, bool power_of_two, const T* x, const float* amax, Q* q, float* s) {
    const int64_t all = static_cast<int64_t>(blocks()) * kEachThreads;
    if (s) {
        NO_UNROLL
        for (int64_t g = static_cast<int64_t>(block()) * kEachThreads + thread(); g < groups.count; g += all)
            s[g] = 1.0f / scale_of(amax[g], Q::kLargest, power_of_two);
    }
    Encoded<T, Q> f{power_of_two, x, amax, q};
    for_groups<W>(n, groups, f);
}

template <class T, class Q>
struct Decoded {
    const Q* q;
    const float* s;
    T* x;
    float scale = 0;
    __device__ void begin(int64_t group) { scale = s ? s[group] : 1; }
    template <int W>
    __device__ void at(int64_t i) const {
        Floats<W> values = Waiting<W, Q>(q + i).floats();
        UNROLL
        for (int j = 0; j < W; ++j) values[j] *= scale;
        store_whole(x + i, values);
    }
};
template <int W, class T, class Q>
__global__ void __launch_bounds__(kEachThreads) from_float8_kernel(int64_t n, Grouping groups, const Q* q, const float* s, T* x) {
    Decoded<T, Q> f{q, s, x};
    for_groups<W>(n, groups, f);
}

struct ScaleOf {
    float largest;
    bool power_of_two;
    const float* amax;
    float* s;
    template <int W>
    __device__ void at(int64_t i) const {
        s[i] = 1.0f / scale_of(amax[i], largest, power_of_two);
    }
};

template <class T>
struct Scaled {
    Grouping of_a, of_b;
    const float *x, *a, *b;
    T* y;
    template <int W>
    __device__ void at(int64_t i) const {
        float value = x[i] * a[group_of(of_a, i / of_a.run)];
        if (b) value *= b[group_of(of_b, i / of_b.run)];
        y[i] = narrow<T>(value);
    }
};

// A block turns tiles of kTurned x kTurned bytes. Each thread reads 16 of a row, and writes 16 of a row of the result.
constexpr int kTurned = 64, kChunksOfRow = kTurned / static_cast<int>(sizeof(Chunk));
static_assert(kTurned * kChunksOfRow == kEachThreads);
__global__ void __launch_bounds__(kEachThreads) turn_kernel(int64_t rows, int64_t columns, const uint8_t* x, uint8_t* out) {
    // A word more in a row: rows that a warp reads at once begin in other banks.
    __shared__ uint32_t tile[kTurned][kTurned / 4 + 1];
    const int64_t across = (columns + kTurned - 1) / kTurned, all = (rows + kTurned - 1) / kTurned * across;
    const int row = static_cast<int>(thread()) / kChunksOfRow, part = static_cast<int>(thread()) % kChunksOfRow;
    for (int64_t t = block(); t < all; t += blocks()) {
        const int64_t top = t / across * kTurned, left = t % across * kTurned;
        const int64_t from = left + part * 16, to = top + part * 16;
        if (top + row < rows && from < columns) {
            CHECK_ALIGNMENT(x, sizeof(Chunk));
            const Chunk chunk = *reinterpret_cast<const Chunk*>(x + (top + row) * columns + from);
            UNROLL
            for (int i = 0; i < 4; ++i) tile[row][part * 4 + i] = chunk.words[i];
        }
        block_barrier();
        if (left + row < columns && to < rows) {
            Chunk chunk;
            UNROLL
            for (int i = 0; i < 4; ++i) {
                uint32_t word = 0;
                UNROLL
                for (int j = 0; j < 4; ++j) word |= (tile[part * 16 + i * 4 + j][row / 4] >> row % 4 * 8 & 0xffu) << j * 8;
                chunk.words[i] = word;
            }
            CHECK_ALIGNMENT(out, sizeof(Chunk));
            *reinterpret_cast<Chunk*>(out + (left + row) * rows + to) = chunk;
        }
        block_barrier();  // the tile has been read
    }
}

}  // namespace

template <class T>
void amax(Stream stream, int64_t n, const Grouping& groups, const T* x, float* amax) {
    if (n == 0) return;
    auto* const bits = reinterpret_cast<int*>(amax);
    if (may_be_wide(n, groups, x)) launch(amax_kernel<kCodes, T>, grid_of(n, groups), stream, n, groups, x, bits);
    else launch(amax_kernel<1, T>, grid_of(n, groups), stream, n, groups, x, bits);
}
void round_to(Stream stream, Dtype type, float* x) { launch(round_kernel, Grid{1, 1}, stream, type, x); }

template <class T, class Q>
void to_float8(Stream stream, int64_t n, const Grouping& groups, bool power_of_two, const T* x, const float* amax, Q* q,
               float* s) {
    if (n == 0) return;
    const Grid grid = grid_of(n, groups);
    if (may_be_wide(n, groups, x, q))
        launch(to_float8_kernel<kCodes, T, Q>, grid, stream, n, groups, power_of_two, x, amax, q, s);
    else launch(to_float8_kernel<1, T, Q>, grid, stream, n, groups, power_of_two, x, amax, q, s);
}
void float8_scale(Stream stream, int64_t n, float largest, bool power_of_two, const float* amax, float* s) {
    for_each(stream, n, ScaleOf{largest, power_of_two, amax, s});
}
template <class T, class Q>
void from_float8(Stream stream, int64_t n, const Grouping& groups, const Q* q, const float* s, T* x) {
    if (n == 0) return;
    const Grid grid = grid_of(n, groups);
    if (may_be_wide(n, groups, q, x)) launch(from_float8_kernel<kCodes, T, Q>, grid, stream, n, groups, q, s, x);
    else launch(from_float8_kernel<1, T, Q>, grid, stream, n, groups, q, s, x);
}
template <class T>
void apply_scales(Stream stream, int64_t n, const Grouping& of_a, const Grouping& of_b, const float* x, const float* a,
                  const float* b, T* y) {
    for_each(stream, n, Scaled<T>{of_a, of_b, x, a, b, y});
}
void turn(Stream stream, int64_t rows, int64_t columns, const void* x, void* out) {
    const int64_t all = (rows + kTurned - 1) / kTurned * ((columns + kTurned - 1) / kTurned);
    const Grid grid = {static_cast<unsigned>(all < kEachBlocks ? all : kEachBlocks), kEachThreads};
    launch(turn_kernel, grid, stream, rows, columns, static_cast<const uint8_t*>(x), static_cast<uint8_t*>(out));
}

#define COPY_OF_TWO(T, Q)                                                                                      \
    template void to_float8<T, Q>(Stream, int64_t, const Grouping&, bool, const T*, const float*, Q*, float*); \
    template void from_float8<T, Q>(Stream, int64_t, const Grouping&, const Q*, const float*, T*);
#define COPY(T)                                                                                                                \
    template void amax<T>(Stream, int64_t, const Grouping&, const T*, float*);                                                 \
    template void apply_scales<T>(Stream, int64_t, const Grouping&, const Grouping&, const float*, const float*, const float*, \
                                  T*);                                                                                         \
    COPY_OF_TWO(T, F8E4M3) COPY_OF_TWO(T, F8E5M2)
LOCKSTEP_OF_ONE_TYPE(COPY)
#undef COPY
#undef COPY_OF_TWO

}  // namespace lockstep::kernels::gpu
