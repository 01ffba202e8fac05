#include "passes/parameter_places.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "base/random.h"

namespace lockstep::passes {
namespace {

using ir::AxisList;

// Neighbouring dims of a parameter that a rank steps through as through one: `local` of its `global` indices, `stride` apart.
struct Extent {
    int64_t local = 1, global = 1, stride = 1;
    bool is_whole() const { return local == global; }
};

ops::ElementPlace place_of(const mesh::Mesh& mesh, const ir::Parameter& param, const AxisList& shards) {
    ops::ElementPlace place;
    place.stream = static_cast<int64_t>(hash_name(param.name) >> 1);
    place.steps.assign(shards.size(), 0);
    std::vector<Extent> extents(1);  // from the last dims to the first
    int64_t stride = 1;
    for (size_t i = param.dims.size(); i-- > 0;) {
        const ir::Dim& d = param.dims[i];
        const AxisList& axes = param.placement.dims[i];
        ensure(i == 0 || d.size == d.valid, param.key + ": a dim behind the first is padded");
        const int64_t local = d.size / mesh.size(axes);
        if (!extents.back().is_whole()) extents.push_back({1, 1, stride});
        extents.back().local *= local, extents.back().global *= d.size;
        int64_t step = stride * local;
        for (size_t k = axes.size(); k-- > 0;) {
            place.steps[static_cast<size_t>(std::find(shards.begin(), shards.end(), axes[k]) - shards.begin())] = step;
            step *= mesh.size({axes[k]});
        }
        stride *= d.size;
    }
    std::erase_if(extents, [](const Extent& e) { return e.local == 1; });
    auto next = extents.begin();
    if (next != extents.end() && next->stride == 1) place.run = (next++)->local;
    place.stride = place.run;
    if (next != extents.end()) place.rows = next->local, place.stride = (next++)->stride;
    place.far = place.rows * place.stride;
    if (next != extents.end()) place.far = (next++)->stride;
    ensure(next == extents.end(), param.key + ": it is sharded along more dims than places can say");
    return place;
}

}  // namespace

ops::ElementPlaces parameter_places(const ir::Program& program, const ir::Segment& segment) {
    ops::ElementPlaces out;
    out.shards = segment.shards;
    for (const ir::Member& m : segment.members) {
        out.of.push_back(place_of(program.mesh, *program.param(m.param), segment.shards));
        out.of.back().begin = m.begin;
    }
    return out;
}

}  // namespace lockstep::passes
