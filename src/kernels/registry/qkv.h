// Queries, keys and values, taken apart and put together.
#pragma once

#include "kernels/qkv_shape.h"
#include "kernels/registry/registry.h"
#include "ops/rope.h"

namespace lockstep::kernels::registry {

// Of the op whose operand or result `together` has all, and `keys` only the keys.
inline QkvShape qkv_shape(const KernelContext& c, const ir::Tensor& together, const ir::Tensor& keys) {
    const RowsOf k = rows_of(c, keys);
    QkvShape s;
    s.head_dim = k.n, s.keys = c.size(keys, static_cast<int>(keys.dims.size()) - 2);
    s.tokens = k.rows / s.keys;
    s.queries = c.elements(together) / s.tokens / s.head_dim - 2 * s.keys;
    return s;
}
// How queries and keys are rotated on the way, where the op has positions.
template <class B>
struct Rotation {
    typename B::Frequencies frequencies{};
    float sign = 1;
    Rotation(const KernelContext& c, int64_t head_dim) {
        if (!c.op.attrs.contains("sign")) return;
        frequencies = B::frequencies(ops::rope_frequencies(c.op, head_dim));
        sign = static_cast<float>(c.op.integer("sign"));
    }
};

// Positions: int32_t where queries and keys are rotated, else none.
template <class B, class T, class... Positions>
struct SplitQkv {  // qkv[, pos] -> q, k, v
    static constexpr Family kFamily{"split_qkv", "split_qkv"};
    static constexpr size_t kOperands = 1 + sizeof...(Positions);
    using Types = std::tuple<T, T, T>(T, Positions...);
    static bool serves(const KernelContext& c) {
        return c.op.in.size() == kOperands && rows_of(c, c.out(1)).n / 2 <= B::kMostFrequencies;
    }
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        const QkvShape s = qkv_shape(c, c.in(0), c.out(1));
        return kernel_from([s, r = Rotation<B>(c, s.head_dim)](const KernelArgs& k) {
            const int32_t* pos = kOperands == 2 ? ids(k, 1) : nullptr;
            B::split_qkv(B::place(k), s, in<T>(k, 0), pos, r.frequencies, r.sign, out<T>(k, 0), out<T>(k, 1), out<T>(k, 2));
        });
    }
};
template <class B, class T, class... Positions>
struct JoinQkv {  // q, k, v[, pos] -> qkv
    static constexpr Family kFamily{"join_qkv", "join_qkv"};
    static constexpr size_t kOperands = 3 + sizeof...(Positions);
    using Types = T(T, T, T, Positions...);
    static bool serves(const KernelContext& c) {
        return c.op.in.size() == kOperands && rows_of(c, c.in(1)).n / 2 <= B::kMostFrequencies;
    }
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        const QkvShape s = qkv_shape(c, c.out(0), c.in(1));
        return kernel_from([s, r = Rotation<B>(c, s.head_dim)](const KernelArgs& k) {
            const int32_t* pos = kOperands == 4 ? ids(k, 3) : nullptr;
            B::join_qkv(B::place(k), s, in<T>(k, 0), in<T>(k, 1), in<T>(k, 2), pos, r.frequencies, r.sign, out<T>(k, 0));
        });
    }
};

}  // namespace lockstep::kernels::registry
