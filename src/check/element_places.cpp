#include "check/element_places.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/random.h"
#include "check/flat_value.h"
#include "ops/element_places.h"

namespace lockstep::check {
namespace {

// An index along a dim moves an element by `here` on its rank and by `there` in the whole parameter.
struct Step {
    int64_t size, here, there;
};

std::vector<Step> steps_of(const mesh::Mesh& mesh, const ir::Parameter& param) {
    std::vector<Step> out;
    int64_t here = 1, there = 1;
    for (size_t i = param.dims.size(); i-- > 0;) {
        const int64_t local = param.dims[i].size / mesh.size(param.placement.dims[i]);
        out.push_back({local, here, there});
        here *= local, there *= param.dims[i].size;
    }
    return out;
}

// Runs, and groups of them, begin where an index along a dim does. Between these an index is a sum of steps.
bool are_runs(const std::vector<Step>& steps, int64_t count, const ops::ElementPlace& place) {
    const auto begins = [&](int64_t n) {
        return n >= count || std::any_of(steps.begin(), steps.end(), [n](const Step& s) { return s.here == n; });
    };
    return begins(place.run) && begins(place.run * place.rows) && std::all_of(steps.begin(), steps.end(), [&](const Step& s) {
               return s.size == 1 ||
                      (place.index(s.here) == s.there && place.index(s.here * (s.size - 1)) == s.there * (s.size - 1));
           });
}

// By how much the first element moves from one rank along the sub-axis to the next.
int64_t step_along(const mesh::Mesh& mesh, const ir::Parameter& param, int axis) {
    const std::vector<Step> steps = steps_of(mesh, param);
    for (size_t i = 0; i < param.dims.size(); ++i) {
        const ir::AxisList& axes = param.placement.dims[i];
        const auto at = std::find(axes.begin(), axes.end(), axis);
        if (at == axes.end()) continue;
        const Step& s = steps[steps.size() - 1 - i];
        return s.size * s.there * mesh.size(ir::AxisList(at + 1, axes.end()));
    }
    return 0;
}

}  // namespace

std::string wrong_places(const ir::Program& p, const ir::Segment& segment, const ir::Op& op) {
    const ops::ElementPlaces places = ops::element_places(op);
    if (ascending(places.shards) != ascending(segment.shards)) return "draws along other sub-axes than shard its segment";
    if (places.of.size() != segment.members.size()) return "draws for other parameters than its segment has";
    for (size_t k = 0; k < places.of.size(); ++k) {
        const ops::ElementPlace& place = places.of[k];
        const ir::Member& m = segment.members[k];
        const ir::Parameter* param = p.param(m.param);
        if (!param || place.begin != m.begin || place.stream != static_cast<int64_t>(hash_name(param->name) >> 1))
            return fmt::format("draws for another parameter than {}", m.param);
        bool fits = are_runs(steps_of(p.mesh, *param), m.count, place);
        for (size_t i = 0; i < places.shards.size(); ++i)
            fits = fits && place.steps[i] == step_along(p.mesh, *param, places.shards[i]);
        if (!fits) return fmt::format("draws for other elements of {} than a rank has", m.param);
    }
    return "";
}

}  // namespace lockstep::check
