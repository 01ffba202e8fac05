// Which scale belongs to which element of a float8 tensor, on one rank. Along each dim of the tensor there is a scale for every
// element (the same dim), for every group of neighbours (a coarse dim), or for all elements (no dim).
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "base/error.h"
#include "base/float8.h"
#include "kernels/kernel.h"

namespace lockstep::kernels {

struct Float8Groups {
    struct Along {
        int64_t size;    // elements of the tensor
        int64_t each;    // of them with one scale
        int64_t stride;  // from a scale to the next
    };
    std::vector<Along> dims;  // of the tensor
    int64_t count = 1;        // scales

    // Elements next to each other that have one scale, from a multiple of this on.
    int64_t run() const {
        int64_t n = 1;
        for (auto d = dims.rbegin(); d != dims.rend(); ++d) {
            const bool is_whole = d->stride == 0 || d->each >= d->size;
            n *= is_whole ? std::max<int64_t>(d->size, 1) : d->each;
            if (!is_whole) break;
        }
        return n;
    }

    // Elements next to each other whose scales are next to each other, from a multiple of this on.
    int64_t columns() const {
        int64_t n = 1;
        for (auto d = dims.rbegin(); d != dims.rend(); ++d) {
            if (d->size == 1) continue;
            if (d->each != 1 || d->stride != n) break;
            n *= d->size;
        }
        return n;
    }

    int64_t of(int64_t element) const {
        int64_t at = 0;
        for (auto d = dims.rbegin(); d != dims.rend(); ++d) {
            at += element % d->size / d->each * d->stride;
            element /= d->size;
        }
        return at;
    }
};

// Of to_blocks; nothing: the scale of a block is a float, as to_float8 makes it.
inline std::optional<BlockRounding> block_rounding(const ir::Op& op) {
    if (!op.attrs.contains("rounding")) return std::nullopt;
    return op.text("rounding") == "rceil" ? BlockRounding::rceil : BlockRounding::floor;
}

inline Float8Groups float8_groups(const KernelContext& c, const ir::Tensor& whole, const ir::Tensor& scale) {
    Float8Groups out;
    for (size_t i = 0; i < whole.dims.size(); ++i) {
        const int64_t size = c.size(whole, static_cast<int>(i));
        out.dims.push_back({size, std::max<int64_t>(size, 1), 0});
    }
    for (size_t i = scale.dims.size(); i-- > 0;) {
        const int64_t count = c.size(scale, static_cast<int>(i));
        auto fine = std::find(whole.dims.begin(), whole.dims.end(), scale.dims[i]);
        if (fine == whole.dims.end())
            fine = std::find(whole.dims.begin(), whole.dims.end(), c.routine.dims[static_cast<size_t>(scale.dims[i])].of);
        ensure(fine != whole.dims.end(), "float8: a scale has a dim that its tensor lacks");
        Float8Groups::Along& along = out.dims[static_cast<size_t>(fine - whole.dims.begin())];
        along.each = std::max<int64_t>(along.size / count, 1);
        along.stride = out.count;
        out.count *= count;
    }
    return out;
}

}  // namespace lockstep::kernels
