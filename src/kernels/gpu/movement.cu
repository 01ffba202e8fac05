#include "kernels/gpu/movement.h"

#include <type_traits>

#include "base/storage.h"
#include "kernels/gpu/each.h"

namespace lockstep::kernels::gpu {
namespace {

// The largest unit in which bytes can be moved that begin and end at multiples of `all`.
template <class Start>
void by_unit(uintptr_t all, Start start) {
    if (all % sizeof(Chunk) == 0) start(Chunk{});
    else if (all % sizeof(uint32_t) == 0) start(uint32_t{});
    else start(uint8_t{});
}
template <class... T>
uintptr_t bits_of(const T*... pointers) {
    return (reinterpret_cast<uintptr_t>(pointers) | ...);
}

template <class Unit>
__device__ __forceinline__ void move(const void* from, void* to, int64_t from_bytes, int64_t to_bytes) {
    const auto* const f = reinterpret_cast<const Unit*>(static_cast<const char*>(from) + from_bytes);
    auto* const t = reinterpret_cast<Unit*>(static_cast<char*>(to) + to_bytes);
    CHECK_ALIGNMENT(f, sizeof(Unit));
    CHECK_ALIGNMENT(t, sizeof(Unit));
    *t = *f;
}

template <class Unit>
struct Moved {
    const void* from;
    void* to;
    template <int W>
    __device__ void at(int64_t i) const {
        const int64_t bytes = i * static_cast<int64_t>(sizeof(Unit));
        move<Unit>(from, to, bytes, bytes);
    }
};
template <class Unit>
struct RowsMoved {
    uint32_t units;  // of a row
    int64_t from_stride, to_stride;
    const void* from;
    void* to;
    template <int W>
    __device__ void at(int64_t i) const {
        const uint32_t row = static_cast<uint32_t>(i) / units, column = static_cast<uint32_t>(i) % units;
        const int64_t bytes = column * static_cast<int64_t>(sizeof(Unit));
        move<Unit>(from, to, row * from_stride + bytes, row * to_stride + bytes);
    }
};

template <class Unit>
struct Zeros {
    void* to;
    template <int W>
    __device__ void at(int64_t i) const {
        static_cast<Unit*>(to)[i] = Unit{};
    }
};

struct Transposed {
    int64_t rows, columns;
    const float* x;
    float* out;
    template <int W>
    __device__ void at(int64_t i) const {
        const int64_t matrix = i / (rows * columns), column = i / rows % columns, row = i % rows;
        out[i] = x[(matrix * rows + row) * columns + column];
    }
};

template <class Unit>
struct RowsAppended {
    Append shape;
    const int32_t* positions;
    const void* x;
    void* cache;
    template <int W>
    __device__ void at(int64_t i) const {
        const int64_t units = shape.row_bytes / static_cast<int64_t>(sizeof(Unit)), row = i / units,
                      column = i % units * static_cast<int64_t>(sizeof(Unit)), position = positions[row];
        if (position < 0 || position >= shape.length) return;
        move<Unit>(x, cache, row * shape.row_bytes + column,
                   (row / shape.seq * shape.length + position) * shape.row_bytes + column);
    }
};

template <class T>
constexpr bool is_stored_narrow() {
    return is_narrow(kDtypeOf<T>);
}
// What elements are combined in; they are rounded to T after each. Sums of integers wrap.
template <class T>
using WideOf = std::conditional_t<is_stored_narrow<T>(), float, std::conditional_t<std::is_same_v<T, int32_t>, uint32_t, T>>;

template <class T, bool is_max>
struct ReductionOf {
    Reduction r;

    template <int W>
    __device__ static void combine(Stored<W, T>& sum, const Stored<W, T>& more) {
        UNROLL
        for (int k = 0; k < W; ++k) {
            if constexpr (is_max) {
                const auto a = widen_any(sum.v[k]), b = widen_any(more.v[k]);
                if (!(a >= b || a != a)) sum.v[k] = more.v[k];
            } else {
                using Wide = WideOf<T>;
                sum.v[k] = narrow_any(static_cast<Wide>(widen_any(sum.v[k])) + static_cast<Wide>(widen_any(more.v[k])));
            }
        }
    }
    template <int W>
    __device__ Stored<W, T> combined(int first, int end, int64_t i) const {
        Stored<W, T> sum = load_stored<W>(static_cast<const T*>(r.in[first]) + i);
        for (int k = first + 1; k < end; ++k) combine<W>(sum, load_stored<W>(static_cast<const T*>(r.in[k]) + i));
        return sum;
    }
    template <int W>
    __device__ void at(int64_t i) const {
        const int run = r.level > 1 && r.level < r.ranks ? r.level : r.ranks;
        Stored<W, T> sum = combined<W>(0, run, i);
        for (int first = run; first < r.ranks; first += run)
            combine<W>(sum, combined<W>(first, first + run < r.ranks ? first + run : r.ranks, i));
        for (int k = 0; k < r.results; ++k) {
            T* const to = static_cast<T*>(r.out[k]) + i;
            Stored<W, T> result = sum;
            if (r.accumulate) {
                result = load_stored<W>(to);
                combine<W>(result, sum);
            }
            store_stored(to, result);
        }
    }

private:
    __device__ static auto widen_any(T x) {
        if constexpr (is_stored_narrow<T>()) return widen(x);
        else return x;
    }
    template <class Wide>
    __device__ static T narrow_any(Wide x) {
        if constexpr (is_stored_narrow<T>()) return narrow<T>(x);
        else return static_cast<T>(x);
    }
};

template <class T>
void reduce_as(Stream stream, int64_t n, const Reduction& r) {
    uintptr_t bits = 0;
    for (int k = 0; k < r.ranks; ++k) bits |= bits_of(r.in[k]);
    for (int k = 0; k < r.results; ++k) bits |= bits_of(r.out[k]);
    const bool wide = bits % sizeof(Chunk) == 0 && sizeof(T) * kWide % sizeof(Chunk) == 0;
    if (r.is_max) for_each(stream, n, wide, ReductionOf<T, true>{r});
    else for_each(stream, n, wide, ReductionOf<T, false>{r});
}

}  // namespace

void copy_rows(Stream stream, const RowsOfBytes& rows, const void* from, void* to) {
    if (from == to || rows.count == 0 || rows.bytes == 0) return;
    const auto strides = static_cast<uintptr_t>(rows.count > 1 ? rows.from_stride | rows.to_stride : 0);
    by_unit(bits_of(from, to) | static_cast<uintptr_t>(rows.bytes) | strides, [&]<class Unit>(Unit) {
        const int64_t units = rows.bytes / static_cast<int64_t>(sizeof(Unit));
        const bool are_together = rows.from_stride == rows.bytes && rows.to_stride == rows.bytes;
        if (rows.count == 1 || are_together) return for_each(stream, rows.count * units, Moved<Unit>{from, to});
        for_each_of_rows(stream, rows.count, units, [&](int64_t first) {
            return RowsMoved<Unit>{static_cast<uint32_t>(units), rows.from_stride, rows.to_stride,
                                   static_cast<const char*>(from) + first * rows.from_stride,
                                   static_cast<char*>(to) + first * rows.to_stride};
        });
    });
}
void copy(Stream stream, int64_t bytes, const void* from, void* to) { copy_rows(stream, {1, bytes, 0, 0}, from, to); }
void fill_zero(Stream stream, int64_t bytes, void* to) {
    by_unit(bits_of(to) | static_cast<uintptr_t>(bytes),
            [&]<class Unit>(Unit) { for_each(stream, bytes / static_cast<int64_t>(sizeof(Unit)), Zeros<Unit>{to}); });
}
void transpose(Stream stream, int64_t count, int64_t rows, int64_t columns, const float* x, float* out) {
    for_each(stream, count * rows * columns, Transposed{rows, columns, x, out});
}
void append(Stream stream, const Append& shape, const int32_t* positions, const void* x, void* cache) {
    by_unit(bits_of(x, cache) | static_cast<uintptr_t>(shape.row_bytes), [&]<class Unit>(Unit) {
        for_each(stream, shape.count * (shape.row_bytes / static_cast<int64_t>(sizeof(Unit))),
                 RowsAppended<Unit>{shape, positions, x, cache});
    });
}
void reduce(Stream stream, int64_t n, const Reduction& r) {
    with_storage(r.type, [&]<class T>(std::type_identity<T>) {
        if constexpr (is_coded(kDtypeOf<T>)) throw std::logic_error("nothing reduces float8");
        else reduce_as<T>(stream, n, r);
    });
}

}  // namespace lockstep::kernels::gpu
