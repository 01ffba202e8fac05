// The draws of one rank for an op with the attributes of ops/element_places.h.
#pragma once

#include "base/error.h"
#include "kernels/element_draws.h"
#include "kernels/kernel.h"
#include "ops/element_places.h"

namespace lockstep::kernels {

// Operand 0 is the rank's shard of the segment.
inline ElementDraws rank_draws(const KernelContext& c) {
    const ops::ElementPlaces places = ops::element_places(c.op);
    ensure(places.of.size() <= ElementDraws::kMost, c.routine.name + ": a segment of more parameters than a kernel draws for");
    const int64_t shard = c.first_index(c.in(0), 0);
    ElementDraws out = {};
    out.seed = static_cast<uint64_t>(c.op.integer("seed"));
    for (const ops::ElementPlace& p : places.of) {
        int64_t first = 0;
        for (size_t k = 0; k < places.shards.size(); ++k) first += c.mesh.coordinate(c.rank, places.shards[k]) * p.steps[k];
        out.of[out.count++] = {p.begin - shard, first, p.run, p.rows, p.stride, p.far, static_cast<uint64_t>(p.stream)};
    }
    return out;
}

}  // namespace lockstep::kernels
