#include "ops/rope.h"

#include <algorithm>
#include <cmath>

#include "kernels/reference/reference.h"

namespace lockstep::kernels::reference {

template <class T>
Made make_rope(const KernelContext& c) {
    const ir::Tensor& x = c.in(0);
    const int64_t head_dim = c.size(x, static_cast<int>(x.dims.size()) - 1), tokens = c.elements(c.in(1)), half = head_dim / 2;
    const int64_t heads = c.elements(x) / tokens / head_dim;
    // Of a row of queries, keys and values the values stay as they are.
    const bool packed = ops::is_packed_qkv(c.routine, c.op.in[0]);
    const int64_t rotated = packed ? heads - c.size(x, static_cast<int>(x.dims.size()) - 2) : heads;
    const double sign = static_cast<double>(c.op.integer("sign"));
    return kernel_from([=, frequencies = ops::rope_frequencies(c.op, head_dim)](const KernelArgs& a) {
        T* out = static_cast<T*>(a.out[0]);
        for (int64_t t = 0; t < tokens; ++t) {
            const T* const values = in<T>(a, 0) + (t * heads + rotated) * head_dim;
            std::copy(values, values + (heads - rotated) * head_dim, out + (t * heads + rotated) * head_dim);
            for (int64_t i = 0; i < half; ++i) {
                const double angle = in<int32_t>(a, 1)[t] * frequencies[i], cosine = std::cos(angle),
                             sine = sign * std::sin(angle);
                for (int64_t h = 0; h < rotated; ++h) {
                    const int64_t at = (t * heads + h) * head_dim + i;
                    const double u = in<T>(a, 0)[at], v = in<T>(a, 0)[at + half];
                    out[at] = static_cast<T>(u * cosine - v * sine);
                    out[at + half] = static_cast<T>(v * cosine + u * sine);
                }
            }
        }
    });
}

// split_qkv and join_qkv: the rows of a token, queries, keys, then values, one by one.
template <class T>
Made make_qkv(const KernelContext& c) {
    const bool splits = c.op.kind == "split_qkv", rotates = c.op.in.size() == (splits ? 2u : 4u);
    const ir::Tensor& packed = splits ? c.in(0) : c.out(0);
    const ir::Tensor& keys = splits ? c.out(1) : c.in(1);
    const auto last = static_cast<int>(packed.dims.size()) - 1;
    const int64_t head_dim = c.size(packed, last), half = head_dim / 2, kv_heads = c.size(packed, last - 1);
    const int64_t tokens = c.elements(keys) / kv_heads / head_dim, heads = c.elements(packed) / tokens / head_dim;
    const int64_t first_key = heads - 2 * kv_heads;
    const double sign = rotates ? static_cast<double>(c.op.integer("sign")) : 0;
    const std::vector<double> frequencies = rotates ? ops::rope_frequencies(c.op, head_dim) : std::vector<double>();
    return kernel_from([=](const KernelArgs& a) {
        for (int64_t t = 0; t < tokens; ++t) {
            for (int64_t h = 0; h < heads; ++h) {
                const int part = h < first_key ? 0 : h < heads - kv_heads ? 1 : 2;
                const int64_t of_part = part == 0 ? first_key : kv_heads,
                              first = part == 0 ? 0 : first_key + (part - 1) * kv_heads;
                const int64_t apart = (t * of_part + h - first) * head_dim, together = (t * heads + h) * head_dim;
                const T* from = splits ? in<T>(a, 0) + together : in<T>(a, part) + apart;
                T* to = splits ? static_cast<T*>(a.out[part]) + apart : static_cast<T*>(a.out[0]) + together;
                if (part == 2 || !rotates) {
                    std::copy(from, from + head_dim, to);
                    continue;
                }
                for (int64_t i = 0; i < half; ++i) {
                    const double angle = in<int32_t>(a, splits ? 1 : 3)[t] * frequencies[i], cosine = std::cos(angle),
                                 sine = sign * std::sin(angle);
                    const double u = from[i], v = from[i + half];
                    to[i] = static_cast<T>(u * cosine - v * sine);
                    to[i + half] = static_cast<T>(v * cosine + u * sine);
                }
            }
        }
    });
}

template Made make_qkv<float>(const KernelContext&);
template Made make_qkv<double>(const KernelContext&);
template Made make_rope<float>(const KernelContext&);
template Made make_rope<double>(const KernelContext&);

}  // namespace lockstep::kernels::reference
