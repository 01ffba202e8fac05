// What ops of attention ask of a kernel: sizes, masks, dropout.
#pragma once

#include "kernels/attention_shape.h"
#include "kernels/registry/bias.h"
#include "ops/rope.h"

namespace lockstep::kernels::registry {

// query: which operand the queries are; keys, values and the mask's operands follow. Or which one has all in one row.
inline bool is_packed(const KernelContext& c, size_t query) { return ops::is_packed_qkv(c.routine, c.op.in[query]); }
inline AttentionShape attention_shape(const KernelContext& c, size_t query) {
    const ir::Tensor &q = c.in(query), &k = c.in(query + (is_packed(c, query) ? 2 : 1));
    if (is_packed(c, query)) {
        return {c.size(q, 0),
                c.size(q, 1),
                c.size(k, 1),
                c.size(q, 3),
                c.size(q, 2) - 2,
                c.size(q, 4),
                static_cast<float>(c.op.number("scale")),
                c.op.integer("window"),
                true};
    }
    return {c.size(q, 0),
            c.size(q, 1),
            c.size(k, 1),
            c.size(q, 2),
            c.size(q, 3),
            c.size(q, 4),
            static_cast<float>(c.op.number("scale")),
            c.op.integer("window")};
}

// Does a block of a ring go on with what earlier blocks have made? These operands are its last.
inline bool carries(const KernelContext& c) { return c.op.attrs.contains("shift") && c.op.integer("shift") > 0; }

class MaskOfAttention {
public:
    MaskOfAttention(const KernelContext& c, int query)
        : dropped_(c.op), first_(query + 3), noise_(query == 0 ? 7 : 10) {  // behind the mask, or behind out and lse
        const ir::Tensor& q = c.in(static_cast<size_t>(query));
        if (is_packed(c, static_cast<size_t>(query))) {
            first_ = query + 1;
            return;  // without dropout
        }
        drop_ = {nullptr,
                 0,
                 dropped_.threshold,
                 dropped_.scale,
                 c.first_index(q, 2),
                 c.first_index(q, 3),
                 c.routine.dims[q.dims[3]].size};
    }
    AttentionMask operator()(const KernelArgs& k) const {
        AttentionMask mask{ids(k, first_), ids(k, first_ + 1), ids(k, first_ + 2), ids(k, first_ + 3), drop_};
        if (dropped_.drops) mask.drop.noise = ids(k, noise_), mask.drop.stream = dropped_.stream(k);
        return mask;
    }

private:
    Dropped dropped_;
    int first_, noise_;
    AttentionDropout drop_;
};

}  // namespace lockstep::kernels::registry
