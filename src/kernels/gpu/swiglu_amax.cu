#include "kernels/gpu/amax.h"
#include "kernels/gpu/elementwise.h"
#include "kernels/gpu/swiglu.h"

namespace lockstep::kernels::gpu {
namespace {

// Gate and up of a row [n] are one behind the other.
template <class T>
struct Forward {
    const T* both;
    uint32_t n;
    T* y;
    AmaxOfGroups<T> of_y;
    __device__ void begin(int64_t group) { of_y.begin(group); }
    template <int W>
    __device__ void at(int64_t i) {
        const T* const gate = both + i + static_cast<int64_t>(static_cast<uint32_t>(i) / n) * n;
        const Floats<W> out = swiglu_of<T>(load<W>(gate), load<W>(gate + n));
        of_y.take(out);
        store_whole(y + i, out);
    }
    __device__ void end() const { of_y.end(); }
};

template <class T, class OfD, class OfY>
struct Backward {
    const T *dy, *both;
    uint32_t n;
    T *d_both, *y;
    OfD of_d;
    OfY of_y;
    __device__ void begin(int64_t group) { of_d.begin(group), of_y.begin(group); }
    template <int W>
    __device__ void at(int64_t i) {
        const int64_t gate = i + static_cast<int64_t>(static_cast<uint32_t>(i) / n) * n;
        const SwiGluSlopes<W> of = swiglu_slopes<T>(load<W>(dy + i), load<W>(both + gate), load<W>(both + gate + n));
        of_d.take(of.gate), of_d.take(of.up);
        store_whole(d_both + gate, of.gate);
        store_whole(d_both + gate + n, of.up);
        if (!y) return;
        of_y.take(of.y);
        store_whole(y + i, of.y);
    }
    __device__ void end() const { of_d.end(), of_y.end(); }
};

// Without the code for elements that are left at the end: rows are of whole pieces.
template <int Width, class F>
struct InPieces {
    F& f;
    __device__ void begin(int64_t group) const { f.begin(group); }
    template <int W>
    __device__ void at(int64_t i) const {
        if constexpr (W == Width) f.template at<W>(i);
    }
};
template <int W, class F>
__global__ void __launch_bounds__(kEachThreads) amax_of_swiglu_kernel(int64_t n, Grouping groups, F f) {
    InPieces<W, F> pieces{f};
    for_runs<W, uint32_t>(n, groups, pieces);
    f.end();
}

template <class F>
void start_swiglu(Stream stream, int64_t elements, bool wide, const Grouping& groups, const F& f) {
    if (elements == 0) return;
    const Grid grid = grid_of(Walk::Runs, elements, groups, kWide);
    if (wide) launch(amax_of_swiglu_kernel<kWide, F>, grid, stream, elements, groups, f);
    else launch(amax_of_swiglu_kernel<1, F>, grid, stream, elements, groups, f);
}

template <class T>
AmaxOfGroups<T> largest_in(float* amax) {
    return {reinterpret_cast<int*>(amax)};
}

}  // namespace

template <class T>
void swiglu_packed_amax(Stream stream, int64_t rows, int64_t n, const T* both, T* y, const Grouping& groups, float* amax) {
    start_swiglu(stream, rows * n, is_wide(n, both, y), groups,
                 Forward<T>{both, static_cast<uint32_t>(n), y, largest_in<T>(amax)});
}
template <class T>
void swiglu_packed_backward_amax(Stream stream, int64_t rows, int64_t n, const T* dy, const T* both, T* d_both, T* y,
                                 const Grouping& groups, float* amax_d, float* amax_y) {
    const auto start = [&](auto of_d, auto of_y) {
        start_swiglu(stream, rows * n, is_wide(n, dy, both, d_both, y), groups,
                     Backward<T, decltype(of_d), decltype(of_y)>{dy, both, static_cast<uint32_t>(n), d_both, y, of_d, of_y});
    };
    if (!amax_y) start(largest_in<T>(amax_d), NoAmax());
    else if (!amax_d) start(NoAmax(), largest_in<T>(amax_y));
    else start(largest_in<T>(amax_d), largest_in<T>(amax_y));
}

#define COPY(T)                                                                                                                 \
    template void swiglu_packed_amax<T>(Stream, int64_t, int64_t, const T*, T*, const Grouping&, float*);                       \
    template void swiglu_packed_backward_amax<T>(Stream, int64_t, int64_t, const T*, const T*, T*, T*, const Grouping&, float*, \
                                                 float*);
LOCKSTEP_OF_ONE_TYPE(COPY)
#undef COPY

}  // namespace lockstep::kernels::gpu
