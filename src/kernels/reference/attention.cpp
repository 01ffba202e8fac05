#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/random.h"
#include "kernels/reference/reference.h"
#include "kernels/registry/attention.h"

namespace lockstep::kernels::reference {
namespace {

struct Sizes {
    int64_t batch, seq, kv_seq, kv_heads, group, head_dim;
    double scale;
    int64_t window;                    // 0: none
    int64_t first_head, first_member;  // global kv_head and group of this rank's first
    int64_t members;                   // of a group, over all ranks
    DropoutPlace drop;
    AttentionShape shape;  // strides
    int carry = -1;        // the first operand that a block of a ring goes on with
    int64_t query(int64_t b, int64_t s, int64_t h, int64_t g) const {
        return ((b * seq + s) * kv_heads + h) * group + g;
    }                                                                                               // row of out, lse
    int64_t key(int64_t b, int64_t t, int64_t h) const { return (b * kv_seq + t) * kv_heads + h; }  // row of sums
    // Elements of q, and of k and v.
    int64_t query_at(int64_t b, int64_t s, int64_t h, int64_t g) const {
        return (b * seq + s) * shape.query_stride() + (h * group + g) * head_dim;
    }
    int64_t key_at(int64_t b, int64_t t, int64_t h) const { return (b * kv_seq + t) * shape.key_stride() + h * head_dim; }
};

template <class T>
double dot(const T* x, const T* y, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(y[i]);
    return sum;
}

struct Mask {
    const int32_t *pos, *kv_pos, *doc, *kv_doc;
    int64_t window;
    bool sees(int64_t query, int64_t key) const {
        return kv_pos[key] <= pos[query] && kv_doc[key] == doc[query] && (window == 0 || pos[query] - kv_pos[key] < window);
    }
};

// What a probability is multiplied with, by its row's bits and its key's position: 0 where it is dropped.
struct Keep {
    DropoutPlace place;
    uint64_t row;
    Keep(const Sizes& z, const KernelArgs& a, const int32_t* noise, int64_t token, int64_t h, int64_t g) : place(z.drop), row(0) {
        if (!place.drops) return;
        const int64_t head = (z.first_head + h) * z.members + z.first_member + g;
        row = dropout_row(dropout_stream(place.site, static_cast<uint64_t>(a.instance)), static_cast<uint32_t>(noise[token]),
                          static_cast<uint64_t>(head));
    }
    double operator()(int32_t key_position) const {
        if (!place.drops) return 1;
        return dropout_bits(row, static_cast<uint32_t>(key_position)) >= place.threshold ? place.scale : 0;
    }
};

// Queries, keys and values: parts of the row that `first` has, or tensors of their own.
template <class T, class At>
std::array<T*, 3> parts_of(const AttentionShape& s, T* first, At at) {
    if (s.packed) return {first, first + s.first_key(), first + s.first_value()};
    return {first, at(1), at(2)};
}

template <class T>
Made forward(const Sizes& z) {
    return kernel_from([z, p = std::vector<double>(z.kv_seq)](const KernelArgs& a) mutable {
        const auto [q, k, v] = parts_of(z.shape, in<T>(a, 0), [&](int i) { return in<T>(a, i); });
        const int mask_at = z.shape.packed ? 1 : 3;
        const Mask mask = {in<int32_t>(a, mask_at), in<int32_t>(a, mask_at + 1), in<int32_t>(a, mask_at + 2),
                           in<int32_t>(a, mask_at + 3), z.window};
        const int32_t* noise = z.drop.drops ? in<int32_t>(a, 7) : nullptr;
        T *out = static_cast<T*>(a.out[0]), *lse = static_cast<T*>(a.out[1]);
        const double nothing = -std::numeric_limits<double>::infinity();
        for (int64_t b = 0; b < z.batch; ++b)
            for (int64_t s = 0; s < z.seq; ++s)
                for (int64_t h = 0; h < z.kv_heads; ++h)
                    for (int64_t g = 0; g < z.group; ++g) {
                        const int64_t row = z.query(b, s, h, g);
                        const Keep keep(z, a, noise, b * z.seq + s, h, g);
                        const double before = z.carry < 0 ? nothing : static_cast<double>(in<T>(a, z.carry + 1)[row]);
                        double most = before;
                        for (int64_t t = 0; t < z.kv_seq; ++t) {
                            const bool sees = mask.sees(b * z.seq + s, b * z.kv_seq + t);
                            p[t] = sees ? z.scale * dot(q + z.query_at(b, s, h, g), k + z.key_at(b, t, h), z.head_dim) : nothing;
                            most = std::max(most, p[t]);
                        }
                        const double share = before == nothing ? 0 : std::exp(before - most);
                        double sum = share;
                        for (int64_t t = 0; t < z.kv_seq; ++t) sum += p[t] = p[t] == nothing ? 0 : std::exp(p[t] - most);
                        for (int64_t t = 0; t < z.kv_seq; ++t) p[t] *= keep(mask.kv_pos[b * z.kv_seq + t]);
                        for (int64_t i = 0; i < z.head_dim; ++i) {
                            double o = share > 0 ? share * static_cast<double>(in<T>(a, z.carry)[row * z.head_dim + i]) : 0;
                            for (int64_t t = 0; t < z.kv_seq; ++t) o += p[t] * static_cast<double>(v[z.key_at(b, t, h) + i]);
                            out[row * z.head_dim + i] = static_cast<T>(sum > 0 ? o / sum : 0);
                        }
                        lse[row] = static_cast<T>(sum > 0 ? most + std::log(sum) : nothing);
                    }
    });
}

template <class T>
Made backward(const Sizes& z) {
    return kernel_from([z, dk_sum = std::vector<double>(z.batch * z.kv_seq * z.kv_heads * z.head_dim),
                        dv_sum = std::vector<double>(z.batch * z.kv_seq * z.kv_heads * z.head_dim),
                        dq_sum = std::vector<double>(z.head_dim)](const KernelArgs& a) mutable {
        const auto [q, k, v] = parts_of(z.shape, in<T>(a, 1), [&](int i) { return in<T>(a, i + 1); });
        const int mask_at = z.shape.packed ? 2 : 4;
        const T *d_out = in<T>(a, 0), *out = in<T>(a, mask_at + 4), *lse = in<T>(a, mask_at + 5);
        const Mask mask = {in<int32_t>(a, mask_at), in<int32_t>(a, mask_at + 1), in<int32_t>(a, mask_at + 2),
                           in<int32_t>(a, mask_at + 3), z.window};
        const int32_t* noise = z.drop.drops ? in<int32_t>(a, 10) : nullptr;
        const auto [dq, dk, dv] = parts_of(z.shape, static_cast<T*>(a.out[0]), [&](int i) { return static_cast<T*>(a.out[i]); });
        std::fill(dk_sum.begin(), dk_sum.end(), 0.0);
        std::fill(dv_sum.begin(), dv_sum.end(), 0.0);
        for (int64_t b = 0; b < z.batch; ++b)
            for (int64_t s = 0; s < z.seq; ++s)
                for (int64_t h = 0; h < z.kv_heads; ++h)
                    for (int64_t g = 0; g < z.group; ++g) {
                        const int64_t row = z.query(b, s, h, g), at = row * z.head_dim, query = z.query_at(b, s, h, g);
                        const Keep keep(z, a, noise, b * z.seq + s, h, g);
                        const double delta = dot(d_out + at, out + at, z.head_dim);
                        std::fill(dq_sum.begin(), dq_sum.end(), 0.0);
                        if (z.carry >= 0) std::copy_n(in<T>(a, z.carry) + query, z.head_dim, dq_sum.begin());
                        for (int64_t t = 0; t < z.kv_seq; ++t) {
                            if (!mask.sees(b * z.seq + s, b * z.kv_seq + t)) continue;
                            const int64_t sums = z.key(b, t, h) * z.head_dim, key = z.key_at(b, t, h);
                            const double p =
                                std::exp(z.scale * dot(q + query, k + key, z.head_dim) - static_cast<double>(lse[row]));
                            const double kept = keep(mask.kv_pos[b * z.kv_seq + t]);
                            const double ds = z.scale * p * (kept * dot(d_out + at, v + key, z.head_dim) - delta);
                            for (int64_t i = 0; i < z.head_dim; ++i) {
                                dq_sum[i] += ds * static_cast<double>(k[key + i]);
                                dk_sum[sums + i] += ds * static_cast<double>(q[query + i]);
                                dv_sum[sums + i] += p * kept * static_cast<double>(d_out[at + i]);
                            }
                        }
                        for (int64_t i = 0; i < z.head_dim; ++i) dq[query + i] = static_cast<T>(dq_sum[i]);
                    }
        for (int64_t b = 0; b < z.batch; ++b)
            for (int64_t t = 0; t < z.kv_seq; ++t)
                for (int64_t h = 0; h < z.kv_heads; ++h)
                    for (int64_t i = 0; i < z.head_dim; ++i) {
                        const int64_t sums = z.key(b, t, h) * z.head_dim + i, key = z.key_at(b, t, h) + i;
                        dk[key] = static_cast<T>(dk_sum[sums]);
                        dv[key] = static_cast<T>(dv_sum[sums]);
                    }
    });
}

}  // namespace

template <class T>
Made make_attention(const KernelContext& c) {
    const bool is_forward = c.op.kind == ir::kAttention || c.op.kind == ir::kAttentionBlock;
    const size_t query = is_forward ? 0 : 1;
    const ir::Tensor& q = c.in(query);
    const AttentionShape s = registry::attention_shape(c, query);
    Sizes z = {s.batch, s.seq, s.kv_seq, s.kv_heads,          s.group, s.head_dim, c.op.number("scale"), s.window,
               0,       0,     1,        dropout_place(c.op), s};
    if (!s.packed) {
        z.first_head = c.first_index(q, 2), z.first_member = c.first_index(q, 3);
        z.members = c.routine.dims[q.dims[3]].size;
    }
    if (registry::carries(c)) z.carry = static_cast<int>(c.op.in.size()) - (is_forward ? 2 : 1);
    return is_forward ? forward<T>(z) : backward<T>(z);
}

template Made make_attention<float>(const KernelContext&);
template Made make_attention<double>(const KernelContext&);

}  // namespace lockstep::kernels::reference
