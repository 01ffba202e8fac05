// What joins the results of a library's attention that are stored as T with sums in float: of some queries, and of some keys.
#pragma once

#include "kernels/gpu/types.h"

namespace lockstep::kernels::gpu {

// `out` and `lse` of attention to the keys so far are joined with `part` and `part_lse` of attention to other keys; without
// `carries` they are replaced. Of each sequence the queries from `first` on; [batch, seq, heads, head_dim] and [batch, seq, heads].
struct MergedRows {
    int64_t batch, seq, first, heads, head_dim;
    bool carries;
};
template <class T>
void merge_attention(Stream stream, const MergedRows& rows, const T* part, const float* part_lse, float* out, float* lse);

// Tokens [first, end) of each sequence of x are added to sums, or, unless `adds`, replace them, and all other sums become 0.
// [batch, seq, width]. The sums are in the order of mesh/order.h for `ranks`, x is in plain order.
struct WidenedRows {
    int64_t batch, seq, first, end, width, ranks;
    bool adds;
};
template <class T>
void widen_tokens(Stream stream, const WidenedRows& rows, const T* x, float* sums);

// out, in plain order, of x in the order of mesh/order.h for `ranks`. [batch, seq, row_bytes], of multiples of 16 bytes.
struct OrderedRows {
    int64_t batch, seq, row_bytes, ranks;
};
void in_plain_order(Stream stream, const OrderedRows& rows, const void* x, void* out);

}  // namespace lockstep::kernels::gpu
