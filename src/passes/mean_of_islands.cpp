#include "passes/mean_of_islands.h"

#include "passes/collective_op.h"
#include "passes/flat_ops.h"
#include "passes/quantized_transport.h"

namespace lockstep::passes {
namespace {

using ir::AxisList;
using ir::TensorId;

// Of ranks that hold the same elements the first one meets the other islands, and the rest get the mean from it. So they agree
// also where an island is lost during the meeting.
void mean_of_jobs(ir::Routine& r, const mesh::Mesh& mesh, const ir::Unit& unit, const OuterOptions& options,
                  const std::vector<TensorId>& from, const std::vector<TensorId>& to) {
    for (size_t i = 0; i < from.size(); ++i) {
        const ir::Segment& segment = unit.segments[i];
        const AxisList same = same_along(mesh, unit, segment);
        const bool replicated = mesh.size(same) > 1;
        const TensorId mean = replicated ? like(r, to[i], "met") : to[i];
        ir::Op op;
        op.kind = ir::kMeet, op.in = {from[i]}, op.out = {mean};
        op.attrs = {{"islands", options.islands},
                    {"bits", options.quantized && segment.decay ? kSharedBits : 0},
                    {"count_if", std::vector<int64_t>(same.begin(), same.end())}};
        r.ops.push_back(std::move(op));
        if (!replicated) continue;
        ir::Op all = collective("broadcast", {mean}, {to[i]}, same, "the others have the same");
        all.attrs["root"] = int64_t{0};
        r.ops.push_back(std::move(all));
    }
}

}  // namespace

void mean_of_islands(ir::Routine& r, const ir::Program& program, const ir::Unit& unit, const OuterOptions& options,
                     const std::vector<TensorId>& from, const std::vector<TensorId>& to) {
    if (options.are_jobs) return mean_of_jobs(r, program.mesh, unit, options, from, to);
    const AxisList islands = program.mesh.whole(mesh::Axis::island);
    if (!options.quantized) return r.ops.push_back(collective("all_reduce", from, to, islands, "islands have the same mean"));
    ir::Unit as = unit;
    as.quantized_gradients = kSharedBits;
    all_reduce_quantized(r, program, as, false, from, to, {}, islands);
}

}  // namespace lockstep::passes
