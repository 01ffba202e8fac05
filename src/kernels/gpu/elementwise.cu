#include "kernels/gpu/elementwise.h"

#include "kernels/gpu/each.h"
#include "kernels/gpu/gelu.h"
#include "kernels/gpu/swiglu.h"

namespace lockstep::kernels::gpu {
namespace {

template <class T>
struct AddOf {
    const T* inputs[kMostTerms];
    int count;
    T* out;
    template <int W>
    __device__ void at(int64_t i) const {
        Floats<W> sum = load<W>(inputs[0] + i);
        for (int k = 1; k < count; ++k) {
            const Floats<W> x = load<W>(inputs[k] + i);
            UNROLL
            for (int j = 0; j < W; ++j) sum[j] += x[j];
        }
        store(out + i, sum);
    }
};

template <class T>
struct AddRowsOf {
    const T* x;
    int64_t rows, n;
    T* out;
    template <int W>
    __device__ void at(int64_t i) const {
        Floats<W> sum = {};
        for (int64_t row = 0; row < rows; ++row) {
            const Floats<W> v = load<W>(x + row * n + i);
            UNROLL
            for (int j = 0; j < W; ++j) sum[j] += v[j];
        }
        store(out + i, sum);
    }
};

// out = f(x).
template <class T, class F>
struct MapOf {
    F f;
    const T* x;
    T* out;
    template <int W>
    __device__ void at(int64_t i) const {
        Floats<W> y = load<W>(x + i);
        UNROLL
        for (int j = 0; j < W; ++j) y[j] = f(y[j]);
        store(out + i, y);
    }
};
struct Scaled {
    float factor;
    __device__ float operator()(float x) const { return x * factor; }
};

template <class From, class To>
struct CastOf {
    const From* x;
    To* out;
    template <int W>
    __device__ void at(int64_t i) const {
        store(out + i, load<W>(x + i));
    }
};

template <class T>
struct AccumulateOf {
    const T* x;
    float* out;
    template <int W>
    __device__ void at(int64_t i) const {
        const Floats<W> v = load<W>(x + i);
        Floats<W> sum = load<W>(out + i);
        UNROLL
        for (int j = 0; j < W; ++j) sum[j] += v[j];
        store(out + i, sum);
    }
};

template <class T>
struct SwiGluOf {
    const T *gate, *up;
    T* y;
    template <int W>
    __device__ void at(int64_t i) const {
        store(y + i, swiglu_of<T>(load<W>(gate + i), load<W>(up + i)));
    }
};

// `also`: the result of the forward, too.
template <class T, bool also>
struct SwiGluBackwardOf {
    const T *dy, *gate, *up;
    T *d_gate, *d_up, *y;
    template <int W>
    __device__ void at(int64_t i) const {
        const SwiGluSlopes<W> of = swiglu_slopes<T>(load<W>(dy + i), load<W>(gate + i), load<W>(up + i));
        store(d_gate + i, of.gate);
        store(d_up + i, of.up);
        if constexpr (also) store(y + i, of.y);
    }
};

// Gate and up of a row [n] are one behind the other.
template <class T>
struct SwiGluPackedOf {
    const T* both;
    uint32_t n;
    T* y;
    template <int W>
    __device__ void at(int64_t i) const {
        const T* const gate = both + i + static_cast<int64_t>(static_cast<uint32_t>(i) / n) * n;
        SwiGluOf<T>{gate, gate + n, y + i}.template at<W>(0);
    }
};
template <class T, bool also>
struct SwiGluPackedBackwardOf {
    const T *dy, *both;
    uint32_t n;
    T *d_both, *y;
    template <int W>
    __device__ void at(int64_t i) const {
        const int64_t gate = i + static_cast<int64_t>(static_cast<uint32_t>(i) / n) * n;
        SwiGluBackwardOf<T, also>{dy + i, both + gate, both + gate + n, d_both + gate, d_both + gate + n, also ? y + i : nullptr}
            .template at<W>(0);
    }
};
struct Same {
    __device__ float operator()(float x) const { return x; }
};
template <class T>
struct Gelu {
    __device__ float operator()(float x) const { return x * gelu_share<T>(x); }
};
// y = f(x + b).
template <class T, class F>
struct BiasOf {
    const T *x, *b;
    uint32_t n;
    T* y;
    template <int W>
    __device__ void at(int64_t i) const {
        const Floats<W> of_column = load<W>(b + static_cast<uint32_t>(i) % n);
        Floats<W> v = load<W>(x + i);
        UNROLL
        for (int j = 0; j < W; ++j) v[j] = F()(v[j] + of_column[j]);
        store(y + i, v);
    }
};

template <class T>
struct GeluBackwardOf {
    const T *dy, *x;
    T* dx;
    template <int W>
    __device__ void at(int64_t i) const {
        Floats<W> d = load<W>(dy + i);
        const Floats<W> v = load<W>(x + i);
        UNROLL
        for (int j = 0; j < W; ++j) d[j] *= gelu_slope<T>(v[j]);
        store(dx + i, d);
    }
};

}  // namespace

template <class T>
void add(Stream stream, int64_t n, const T* const* inputs, int count, T* out) {
    AddOf<T> f = {{}, count, out};
    bool wide = is_wide(0, out);
    for (int k = 0; k < count; ++k) f.inputs[k] = inputs[k], wide = wide && is_wide(0, inputs[k]);
    for_each(stream, n, wide, f);
}
template <class T>
void add_rows(Stream stream, int64_t rows, int64_t n, const T* x, T* out) {
    for_each(stream, n, is_wide(n, x, out), AddRowsOf<T>{x, rows, n, out});
}
template <class T>
void scale(Stream stream, int64_t n, const T* x, float factor, T* out) {
    for_each(stream, n, is_wide(0, x, out), MapOf<T, Scaled>{{factor}, x, out});
}
template <class From, class To>
void cast(Stream stream, int64_t n, const From* x, To* out) {
    for_each(stream, n, is_wide(0, x, out), CastOf<From, To>{x, out});
}
template <class T>
void accumulate(Stream stream, int64_t n, const T* x, float* out) {
    for_each(stream, n, is_wide(0, x, out), AccumulateOf<T>{x, out});
}
template <class T>
void swiglu(Stream stream, int64_t n, const T* gate, const T* up, T* y) {
    for_each(stream, n, is_wide(0, gate, up, y), SwiGluOf<T>{gate, up, y});
}
template <class T>
void swiglu_backward(Stream stream, int64_t n, const T* dy, const T* gate, const T* up, T* d_gate, T* d_up, T* y) {
    const auto start = [&]<bool also>() {
        for_each(stream, n, is_wide(0, dy, gate, up, d_gate, d_up, y), SwiGluBackwardOf<T, also>{dy, gate, up, d_gate, d_up, y});
    };
    if (y) start.template operator()<true>();
    else start.template operator()<false>();
}
template <class T>
void swiglu_packed(Stream stream, int64_t rows, int64_t n, const T* both, T* y) {
    for_each_of_rows(stream, rows, n, is_wide(n, both, y), [&](int64_t first) {
        return SwiGluPackedOf<T>{both + 2 * first * n, static_cast<uint32_t>(n), y + first * n};
    });
}
template <class T>
void swiglu_packed_backward(Stream stream, int64_t rows, int64_t n, const T* dy, const T* both, T* d_both, T* y) {
    const auto start = [&]<bool also>() {
        for_each_of_rows(stream, rows, n, is_wide(n, dy, both, d_both, y), [&](int64_t first) {
            const int64_t at = 2 * first * n;
            return SwiGluPackedBackwardOf<T, also>{dy + first * n, both + at, static_cast<uint32_t>(n), d_both + at,
                                                   also ? y + first * n : nullptr};
        });
    };
    if (y) start.template operator()<true>();
    else start.template operator()<false>();
}
template <class T>
void bias(Stream stream, int64_t rows, int64_t n, const T* x, const T* b, T* y) {
    for_each_of_rows(stream, rows, n, is_wide(n, x, b, y), [&](int64_t first) {
        return BiasOf<T, Same>{x + first * n, b, static_cast<uint32_t>(n), y + first * n};
    });
}
template <class T>
void bias_gelu(Stream stream, int64_t rows, int64_t n, const T* x, const T* b, T* y) {
    for_each_of_rows(stream, rows, n, is_wide(n, x, b, y), [&](int64_t first) {
        return BiasOf<T, Gelu<T>>{x + first * n, b, static_cast<uint32_t>(n), y + first * n};
    });
}
template <class T>
void gelu(Stream stream, int64_t n, const T* x, T* y) {
    for_each(stream, n, is_wide(0, x, y), MapOf<T, Gelu<T>>{{}, x, y});
}
template <class T>
void gelu_backward(Stream stream, int64_t n, const T* dy, const T* x, T* dx) {
    for_each(stream, n, is_wide(0, dy, x, dx), GeluBackwardOf<T>{dy, x, dx});
}
#define COPY(T)                                                                                    \
    template void add<T>(Stream, int64_t, const T* const*, int, T*);                               \
    template void add_rows<T>(Stream, int64_t, int64_t, const T*, T*);                             \
    template void scale<T>(Stream, int64_t, const T*, float, T*);                                  \
    template void accumulate<T>(Stream, int64_t, const T*, float*);                                \
    template void swiglu<T>(Stream, int64_t, const T*, const T*, T*);                              \
    template void swiglu_backward<T>(Stream, int64_t, const T*, const T*, const T*, T*, T*, T*);   \
    template void swiglu_packed<T>(Stream, int64_t, int64_t, const T*, T*);                        \
    template void swiglu_packed_backward<T>(Stream, int64_t, int64_t, const T*, const T*, T*, T*); \
    template void bias<T>(Stream, int64_t, int64_t, const T*, const T*, T*);                       \
    template void bias_gelu<T>(Stream, int64_t, int64_t, const T*, const T*, T*);                  \
    template void gelu<T>(Stream, int64_t, const T*, T*);                                          \
    template void gelu_backward<T>(Stream, int64_t, const T*, const T*, T*);
LOCKSTEP_OF_ONE_TYPE(COPY)
#undef COPY
template void cast<float, float>(Stream, int64_t, const float*, float*);
template void cast<float, Bf16>(Stream, int64_t, const float*, Bf16*);
template void cast<float, F16>(Stream, int64_t, const float*, F16*);
template void cast<Bf16, float>(Stream, int64_t, const Bf16*, float*);
template void cast<F16, float>(Stream, int64_t, const F16*, float*);
template void cast<Bf16, Bf16>(Stream, int64_t, const Bf16*, Bf16*);
template void cast<F16, F16>(Stream, int64_t, const F16*, F16*);

}  // namespace lockstep::kernels::gpu
