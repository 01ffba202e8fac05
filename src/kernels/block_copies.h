// Which bytes the ops on blocks of a dim copy: slice, block and join_blocks (ops/blocks.cpp).
#pragma once

#include <cstdint>
#include <vector>

#include "ir/kinds.h"
#include "kernels/kernel.h"

namespace lockstep::kernels {

// `count` rows of `bytes`, from one operand to the result. Offsets and strides in bytes.
struct BlockCopy {
    size_t operand = 0;
    int64_t count, bytes, from, from_stride, to, to_stride;
};

inline std::vector<BlockCopy> block_copies(const KernelContext& c) {
    const auto dim = static_cast<int>(c.op.integer("dim"));
    int64_t outer = 1, inner = bytes_of(c.out(0).dtype);
    for (int i = 0; i < static_cast<int>(c.out(0).dims.size()); ++i) {
        if (i != dim) (i < dim ? outer : inner) *= c.size(c.out(0), i);
    }
    const int64_t ranks = c.mesh.size(c.op.group), index = c.mesh.index(c.rank, c.op.group), result = c.size(c.out(0), dim);
    std::vector<BlockCopy> all;
    // `size` of the dim, from one place to another.
    const auto add = [&](size_t operand, int64_t size, int64_t from, int64_t to) {
        all.push_back({operand, outer, size * inner, from * inner, c.size(c.in(static_cast<int>(operand)), dim) * inner,
                       to * inner, result * inner});
    };
    if (c.op.kind == ir::kSlice) {
        add(0, result, index * result, 0);
    } else if (c.op.kind == ir::kBlock) {
        const bool is_own = c.size(c.in(0), dim) == result;
        add(0, result, is_own ? 0 : (index + c.op.integer("shift")) % ranks * result, 0);
    } else {
        const int64_t block = result / ranks;
        for (int64_t i = 0; i < ranks; ++i) add(static_cast<size_t>(i), block, 0, (index - i + ranks) % ranks * block);
    }
    return all;
}

}  // namespace lockstep::kernels
