// What kernels of dropout find in their op.
#pragma once

#include "base/random.h"
#include "kernels/registry.h"
#include "ops/dropout.h"

namespace lockstep::kernels::registry {

// What an op drops (ops/dropout.h), but for the layer and the noise, which come with a call.
struct Dropped {
    bool drops = false;
    uint64_t site = 0;
    uint32_t threshold = 0;
    float scale = 1;

    explicit Dropped(const ir::Op& op) : drops(ops::has_dropout(op)) {
        if (!drops) return;
        site = static_cast<uint64_t>(op.integer("rng_key"));
        threshold = dropout_threshold(op.number("dropout"));
        scale = static_cast<float>(1 / (1 - op.number("dropout")));
    }
    uint64_t stream(const KernelArgs& k) const { return dropout_stream(site, static_cast<uint64_t>(k.instance)); }
    // Mask: a backend's, of noise, stream, threshold, first index and scale.
    template <class Mask>
    Mask mask(const KernelArgs& k, int noise, int64_t first_index) const {
        return {ids(k, noise), stream(k), threshold, static_cast<uint32_t>(first_index), scale};
    }
};

}  // namespace lockstep::kernels::registry
