#include "comm/reduce.h"

#include <cstring>

#include "base/error.h"
#include "base/storage.h"

namespace lockstep::comm {
namespace {

struct Sum {
    template <class T>
    static T of(T a, T b) {
        if constexpr (is_narrow(kDtypeOf<T>)) return T(static_cast<float>(a) + static_cast<float>(b));
        else return a + b;
    }
    static int32_t of(int32_t a, int32_t b) { return static_cast<int32_t>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b)); }
};

struct Max {
    template <class T>
    static T of(T a, T b) {
        // Of two NaNs or two zeros the earlier.
        return (static_cast<int>(a >= b) | static_cast<int>(a != a)) ? a : b;  // NOLINT(misc-redundant-expression): NaN
    }
};

// Each block is read before it is written. The inner loops have a constant length, so that g++ -O2 vectorises them too.
template <class T, class Op>
void combine_as(const void* a, const void* b, void* out, int64_t count) {
    constexpr int kBlock = 64 / sizeof(T);
    const auto* left = static_cast<const T*>(a);
    const auto* right = static_cast<const T*>(b);
    auto* to = static_cast<T*>(out);
    int64_t i = 0;
    for (; i + kBlock <= count; i += kBlock) {
        T block[kBlock];
        for (int j = 0; j < kBlock; ++j) block[j] = Op::of(left[i + j], right[i + j]);
        std::memcpy(to + i, block, sizeof block);
    }
    for (; i < count; ++i) to[i] = Op::of(left[i], right[i]);
}

template <class Op>
void combine_by(Dtype type, const void* a, const void* b, void* out, int64_t count) {
    with_storage(type, [&]<class T>(std::type_identity<T>) {
        if constexpr (is_coded(kDtypeOf<T>)) throw InternalError("nothing reduces float8");
        else combine_as<T, Op>(a, b, out, count);
    });
}

}  // namespace

void combine(Dtype type, ReduceOp op, const void* a, const void* b, void* out, int64_t count) {
    op == ReduceOp::Sum ? combine_by<Sum>(type, a, b, out, count) : combine_by<Max>(type, a, b, out, count);
}

}  // namespace lockstep::comm
