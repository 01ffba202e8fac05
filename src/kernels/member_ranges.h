// The elements of members that a rank has in its shard of a flat segment, for the ops member_amax and member_float8.
#pragma once

#include <algorithm>
#include <vector>

#include "base/elements.h"
#include "kernels/kernel.h"

namespace lockstep::kernels {

struct MemberRange {
    int64_t which;       // the first number of the triple
    int64_t begin, end;  // in the shard
};

// `segment(which)`: the tensor in which a range is.
template <class F>
std::vector<MemberRange> member_ranges(const KernelContext& c, const F& segment) {
    const auto& triples = std::get<std::vector<int64_t>>(c.op.attrs.at("ranges"));
    std::vector<MemberRange> out;
    for (size_t i = 0; i + 2 < triples.size(); i += 3) {
        const ir::Tensor& x = segment(triples[i]);
        const int64_t first = c.first_index(x, 0), n = c.elements(x);
        const MemberRange r{triples[i], std::max<int64_t>(triples[i + 1] - first, 0), std::min(triples[i + 2] - first, n)};
        if (r.begin < r.end) out.push_back(r);
    }
    return out;
}

// A largest size as it is where x is cast to the type that the op names.
inline double rounded_as(const ir::Op& op, double size) {
    if (!op.attrs.contains("rounded")) return size;
    double bytes = 0;
    const Dtype type = dtype_from(op.text("rounded")).value();
    set_element(&bytes, type, 0, size);
    return element(&bytes, type, 0);
}

}  // namespace lockstep::kernels
