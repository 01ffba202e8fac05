#include "kernels/gpu/float8.h"

#include "kernels/gpu/float8_walks.h"

namespace lockstep::kernels::gpu {
namespace {

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
        for (int j = 0; j < W; ++j) most = larger(most, size_of(values[j]));
    }
    __device__ void begin(int64_t next) {
        end();
        group = next, most = 0;
    }
    __device__ void end() const {
        if (group < 0) return;
        const int all = reduce_over<kEachThreads>(most, parts, [](int a, int b) { return larger(a, b); });
        if (thread() == 0) raise_to(amax + group, all);
    }
};
template <class T>
struct LargestOfColumns {
    const T* x;
    int* amax;
    int* parts;
    template <int W>
    __device__ void tile(const Tile& tile) const {
        int most[W];
        largest_of_columns<W>(tile, x, parts, most);
        if (thread() >= kLanes || !tile.is_own) return;
        UNROLL
        for (int j = 0; j < W; ++j) raise_to(amax + tile.group + j, most[j]);
    }
};
template <Walk walk, int W, class T>
__global__ void __launch_bounds__(kEachThreads) amax_kernel(int64_t n, Grouping groups, const T* x, int* amax) {
    if constexpr (walk == Walk::Columns) {
        __shared__ int parts[kPartsOfTile<W>];
        LargestOfColumns<T> f{x, amax, parts};
        walk_groups<walk, W>(n, groups, f);
    } else {
        __shared__ int parts[kWarps];
        Largest<T> f{x, amax, parts};
        walk_groups<walk, W>(n, groups, f);
        f.end();
    }
}
// `lanes`, a power of two, share a run or a part of one.
template <int W, class T>
__global__ void __launch_bounds__(kEachThreads)
    amax_of_pieces_kernel(int64_t n, Grouping groups, int lanes, const T* x, int* amax) {
    const int64_t pieces = n / W, all = static_cast<int64_t>(blocks()) * kEachThreads;
    for (int64_t first = static_cast<int64_t>(block()) * kEachThreads; first < pieces; first += all) {
        const int64_t piece = first + thread();
        int most = piece < pieces ? largest_size(load<W>(x + piece * W)) : 0;
        for (int mask = lanes / 2; mask > 0; mask /= 2) most = larger(most, shuffle_xor(most, mask));
        if (piece < pieces && piece % lanes == 0) raise_to(amax + group_of(groups, piece * W / groups.run), most);
    }
}

__global__ void round_kernel(Dtype type, float* x) {
    switch (type) {
        case Dtype::BF16: *x = widen(narrow<Bf16>(*x)); return;
        case Dtype::F16: *x = widen(narrow<F16>(*x)); return;
        default: return;
    }
}

template <class T, class Q>
struct Encoded {
    bool power_of_two;
    const T* x;
    const float* amax;
    Q* q;
    float scale = 0;
    __device__ float scale_at(int64_t group) const { return scale_of(amax[group], Q::kLargest, power_of_two); }
    __device__ void begin(int64_t group) { scale = scale_at(group); }
    template <int W>
    __device__ void at(int64_t i) const {
        Floats<W> values = load<W>(x + i);
        UNROLL
        for (int j = 0; j < W; ++j) values[j] *= scale;
        store_codes(q + i, values);
    }
    template <int W>
    __device__ void tile(const Tile& tile) const {
        if (!tile.is_own) return;
        Floats<W> scales = load<W>(amax + tile.group);
        UNROLL
        for (int j = 0; j < W; ++j) scales[j] = scale_of(scales[j], Q::kLargest, power_of_two);
        for_rows(tile, [&](int64_t i) {
            Floats<W> values = load<W>(x + i);
            UNROLL
            for (int j = 0; j < W; ++j) values[j] *= scales[j];
            store_codes(q + i, values);
        });
    }
};
template <Walk walk, int W, class T, class Q>
__global__ void __launch_bounds__(kEachThreads)
    to_float8_kernel(int64_t n, Grouping groups, bool power_of_two, const T* x, const float* amax, Q* q, float* s) {
    Encoded<T, Q> f{power_of_two, x, amax, q};
    const int64_t all = static_cast<int64_t>(blocks()) * kEachThreads;
    if (s) {
        NO_UNROLL
        for (int64_t g = static_cast<int64_t>(block()) * kEachThreads + thread(); g < groups.count; g += all)
            s[g] = 1.0f / f.scale_at(g);
    }
    walk_groups<walk, W>(n, groups, f);
}

template <class T, class Q, class S>
struct Decoded {
    const Q* q;
    const S* s;
    T* x;
    float scale = 0;
    __device__ void begin(int64_t group) { scale = s ? widen(s[group]) : 1; }
    template <int W>
    __device__ void at(int64_t i) const {
        Floats<W> values = Waiting<W, Q>(q + i).floats();
        UNROLL
        for (int j = 0; j < W; ++j) values[j] *= scale;
        store_whole(x + i, values);
    }
    template <int W>
    __device__ void tile(const Tile& tile) const {
        if (!tile.is_own) return;
        const Floats<W> scales = load<W>(s + tile.group);
        for_rows(tile, [&](int64_t i) {
            Floats<W> values = Waiting<W, Q>(q + i).floats();
            UNROLL
            for (int j = 0; j < W; ++j) values[j] *= scales[j];
            store_whole(x + i, values);
        });
    }
};
template <Walk walk, int W, class T, class Q, class S>
__global__ void __launch_bounds__(kEachThreads) from_float8_kernel(int64_t n, Grouping groups, const Q* q, const S* s, T* x) {
    Decoded<T, Q, S> f{q, s, x};
    walk_groups<walk, W>(n, groups, f);
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

// Where the scale of an element is.
__device__ __forceinline__ int64_t place_of(const Grouping& g, int64_t i) {
    if (g.columns == 1) return group_of(g, i / g.run);
    const int64_t row = i / g.columns;
    return group_of(g, row / g.run) + (i - row * g.columns);
}
// W elements of one run, or of one row of columns.
template <int W, class S>
__device__ __forceinline__ void scale_by(Floats<W>& values, const Grouping& g, const S* s) {
    if (g.columns > 1) {
        const Floats<W> scales = load<W>(s);
        UNROLL
        for (int j = 0; j < W; ++j) values[j] *= scales[j];
    } else {
        const float scale = widen(*s);
        UNROLL
        for (int j = 0; j < W; ++j) values[j] *= scale;
    }
}
template <class T, class S>
struct Scaled {
    Grouping of_a, of_b;
    const float* x;
    const S *a, *b;
    T* y;
    template <int W>
    __device__ void at(int64_t i) const {
        const S* const own_a = a + place_of(of_a, i);
        const S* const own_b = b ? b + place_of(of_b, i) : nullptr;
        Floats<W> values = load<W>(x + i);
        scale_by(values, of_a, own_a);
        if (own_b) scale_by(values, of_b, own_b);
        store_whole(y + i, values);
    }
};

}  // namespace

template <class T>
void amax(Stream stream, int64_t n, const Grouping& groups, const T* x, float* amax) {
    auto* const bits = reinterpret_cast<int*>(amax);
    by_walk(n, groups, may_be_wide(n, groups, amax, x), [&]<Walk walk, int W>(const Grid& grid) {
        if constexpr (walk == Walk::Pieces) {
            int lanes = 1;
            while (lanes < kLanes && groups.run / W % (2 * lanes) == 0) lanes *= 2;
            launch(amax_of_pieces_kernel<W, T>, grid, stream, n, groups, lanes, x, bits);
        } else {
            launch(amax_kernel<walk, W, T>, grid, stream, n, groups, x, bits);
        }
    });
}
void round_to(Stream stream, Dtype type, float* x) { launch(round_kernel, Grid{1, 1}, stream, type, x); }

template <class T, class Q>
void to_float8(Stream stream, int64_t n, const Grouping& groups, bool power_of_two, const T* x, const float* amax, Q* q,
               float* s) {
    by_walk(n, groups, may_be_wide(n, groups, amax, x, q), [&]<Walk walk, int W>(const Grid& grid) {
        launch(to_float8_kernel<walk, W, T, Q>, grid, stream, n, groups, power_of_two, x, amax, q, s);
    });
}
void float8_scale(Stream stream, int64_t n, float largest, bool power_of_two, const float* amax, float* s) {
    for_each(stream, n, ScaleOf{largest, power_of_two, amax, s});
}
template <class T, class Q, class S>
void from_float8(Stream stream, int64_t n, const Grouping& groups, const Q* q, const S* s, T* x) {
    by_walk(n, groups, may_be_wide(n, groups, s, q, x), [&]<Walk walk, int W>(const Grid& grid) {
        launch(from_float8_kernel<walk, W, T, Q, S>, grid, stream, n, groups, q, s, x);
    });
}
template <class T, class S>
void apply_scales(Stream stream, int64_t n, const Grouping& of_a, const Grouping& of_b, const float* x, const S* a, const S* b,
                  T* y) {
    const Scaled<T, S> f{of_a, of_b, x, a, b, y};
    if constexpr (std::is_same_v<S, float>) {
        const auto fits = [](const Grouping& g) { return (g.columns > 1 ? g.columns : g.run) % kWide == 0; };
        return for_each(stream, n, is_wide(n, x, a, b, y) && fits(of_a) && (!b || fits(of_b)), f);
    } else {
        for_each(stream, n, f);
    }
}

#define COPY_OF_THREE(T, Q, S) template void from_float8<T, Q, S>(Stream, int64_t, const Grouping&, const Q*, const S*, T*);
#define COPY_OF_TWO(T, Q)                                                                                      \
    template void to_float8<T, Q>(Stream, int64_t, const Grouping&, bool, const T*, const float*, Q*, float*); \
    COPY_OF_THREE(T, Q, float) COPY_OF_THREE(T, Q, E8M0)
#define COPY_OF_SCALES(T, S) \
    template void apply_scales<T, S>(Stream, int64_t, const Grouping&, const Grouping&, const float*, const S*, const S*, T*);
#define COPY(T)                                                                \
    template void amax<T>(Stream, int64_t, const Grouping&, const T*, float*); \
    COPY_OF_SCALES(T, float) COPY_OF_SCALES(T, E8M0) COPY_OF_TWO(T, F8E4M3) COPY_OF_TWO(T, F8E5M2)
LOCKSTEP_OF_ONE_TYPE(COPY)
#undef COPY
#undef COPY_OF_SCALES
#undef COPY_OF_TWO
#undef COPY_OF_THREE

}  // namespace lockstep::kernels::gpu
