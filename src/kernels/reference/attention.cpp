#include <algorithm>
#include <cmath>
#include <limits>

#include "base/random.h"
#include "kernels/reference/reference.h"

namespace lockstep::kernels::reference {
namespace {

struct Sizes {
    int64_t batch, seq, kv_seq, kv_heads, group, head_dim;
    double scale;
    int64_t window;                    // 0: none
    int64_t first_head, first_member;  // global kv_head and group of this rank's first
    int64_t members;                   // of a group, over all ranks
    DropoutPlace drop;
    int64_t query(int64_t b, int64_t s, int64_t h, int64_t g) const {
        return ((b * seq + s) * kv_heads + h) * group + g;
    }                                                                                               // row of q, out, lse
    int64_t key(int64_t b, int64_t t, int64_t h) const { return (b * kv_seq + t) * kv_heads + h; }  // row of k, v
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

template <class T>
Made forward(const Sizes& z) {
    return kernel_from([z, p = std::vector<double>(z.kv_seq)](const KernelArgs& a) mutable {
        const T *q = in<T>(a, 0), *k = in<T>(a, 1), *v = in<T>(a, 2);
        const Mask mask = {in<int32_t>(a, 3), in<int32_t>(a, 4), in<int32_t>(a, 5), in<int32_t>(a, 6), z.window};
        const int32_t* noise = z.drop.drops ? in<int32_t>(a, 7) : nullptr;
        T *out = static_cast<T*>(a.out[0]), *lse = static_cast<T*>(a.out[1]);
        const double nothing = -std::numeric_limits<double>::infinity();
        for (int64_t b = 0; b < z.batch; ++b)
            for (int64_t s = 0; s < z.seq; ++s)
                for (int64_t h = 0; h < z.kv_heads; ++h)
                    for (int64_t g = 0; g < z.group; ++g) {
                        const int64_t row = z.query(b, s, h, g);
                        const Keep keep(z, a, noise, b * z.seq + s, h, g);
                        double most = nothing, sum = 0;
                        for (int64_t t = 0; t < z.kv_seq; ++t) {
                            const bool sees = mask.sees(b * z.seq + s, b * z.kv_seq + t);
                            p[t] =
                                sees ? z.scale * dot(q + row * z.head_dim, k + z.key(b, t, h) * z.head_dim, z.head_dim) : nothing;
                            most = std::max(most, p[t]);
                        }
                        for (int64_t t = 0; t < z.kv_seq; ++t) sum += p[t] = p[t] == nothing ? 0 : std::exp(p[t] - most);
                        for (int64_t t = 0; t < z.kv_seq; ++t) p[t] *= keep(mask.kv_pos[b * z.kv_seq + t]);
                        for (int64_t i = 0; i < z.head_dim; ++i) {
                            double o = 0;
                            for (int64_t t = 0; t < z.kv_seq; ++t)
                                o += p[t] * static_cast<double>(v[z.key(b, t, h) * z.head_dim + i]);
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
        const T *d_out = in<T>(a, 0), *q = in<T>(a, 1), *k = in<T>(a, 2), *v = in<T>(a, 3), *out = in<T>(a, 8),
                *lse = in<T>(a, 9);
        const Mask mask = {in<int32_t>(a, 4), in<int32_t>(a, 5), in<int32_t>(a, 6), in<int32_t>(a, 7), z.window};
        const int32_t* noise = z.drop.drops ? in<int32_t>(a, 10) : nullptr;
        T *dq = static_cast<T*>(a.out[0]), *dk = static_cast<T*>(a.out[1]), *dv = static_cast<T*>(a.out[2]);
        std::fill(dk_sum.begin(), dk_sum.end(), 0.0);
        std::fill(dv_sum.begin(), dv_sum.end(), 0.0);
        for (int64_t b = 0; b < z.batch; ++b)
            for (int64_t s = 0; s < z.seq; ++s)
                for (int64_t h = 0; h < z.kv_heads; ++h)
                    for (int64_t g = 0; g < z.group; ++g) {
                        const int64_t row = z.query(b, s, h, g), at = row * z.head_dim;
                        const Keep keep(z, a, noise, b * z.seq + s, h, g);
                        const double delta = dot(d_out + at, out + at, z.head_dim);
                        std::fill(dq_sum.begin(), dq_sum.end(), 0.0);
                        for (int64_t t = 0; t < z.kv_seq; ++t) {
                            if (!mask.sees(b * z.seq + s, b * z.kv_seq + t)) continue;
                            const int64_t key = z.key(b, t, h) * z.head_dim;
                            const double p = std::exp(z.scale * dot(q + at, k + key, z.head_dim) - static_cast<double>(lse[row]));
                            const double kept = keep(mask.kv_pos[b * z.kv_seq + t]);
                            const double ds = z.scale * p * (kept * dot(d_out + at, v + key, z.head_dim) - delta);
                            for (int64_t i = 0; i < z.head_dim; ++i) {
                                dq_sum[i] += ds * static_cast<double>(k[key + i]);
                                dk_sum[key + i] += ds * static_cast<double>(q[at + i]);
                                dv_sum[key + i] += p * kept * static_cast<double>(d_out[at + i]);
                            }
                        }
                        for (int64_t i = 0; i < z.head_dim; ++i) dq[at + i] = static_cast<T>(dq_sum[i]);
                    }
        for (size_t i = 0; i < dk_sum.size(); ++i) {
            dk[i] = static_cast<T>(dk_sum[i]);
            dv[i] = static_cast<T>(dv_sum[i]);
        }
    });
}

}  // namespace

template <class T>
Made make_attention(const KernelContext& c) {
    const bool is_forward = c.op.kind == "attention";
    const ir::Tensor &q = c.in(is_forward ? 0 : 1), &k = c.in(is_forward ? 1 : 2);
    const Sizes z = {c.size(q, 0),
                     c.size(q, 1),
                     c.size(k, 1),
                     c.size(q, 2),
                     c.size(q, 3),
                     c.size(q, 4),
                     c.op.number("scale"),
                     c.op.integer("window"),
                     c.first_index(q, 2),
                     c.first_index(q, 3),
                     c.routine.dims[q.dims[3]].size,
                     dropout_place(c.op)};
    return is_forward ? forward<T>(z) : backward<T>(z);
}

template Made make_attention<float>(const KernelContext&);
template Made make_attention<double>(const KernelContext&);

}  // namespace lockstep::kernels::reference
