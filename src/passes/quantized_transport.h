// How the flat segments of a unit cross ranks as int8 or int4 (base/quantized.h; qwZ and qgZ of arXiv 2306.10209). Segments
// without decay, as those of norms and biases, are few and sensitive: they cross as they are.
#pragma once

#include <vector>

#include "ir/program.h"

namespace lockstep::passes {

// Bits of an element of what ranks share, where it crosses them quantized: sums of gradients that replicas must have alike, and
// the mean of what islands have changed.
inline constexpr int64_t kSharedBits = 8;

// Over which a segment's gradients are partial besides the optimizer's split, innermost first: ranks that update the same.
ir::AxisList replicas_of(const mesh::Mesh& mesh, const ir::Unit& unit, const ir::Segment& segment);

// to = all_gather(from) over these axes, of what was rounded; also over none, so that every layout computes with the same
// weights. One tensor a segment, in the unit's type of parameters.
void gather_quantized(ir::Routine& r, const ir::Unit& unit, const std::vector<ir::TensorId>& from,
                      const std::vector<ir::TensorId>& to, const ir::AxisList& over);

// to = the sums of `from` over the group, each rank its shard. Over one sub-axis after the other, from the innermost on, each
// rank sends every other one its part in few bits, and adds up what it receives: an element is rounded once for each sub-axis,
// however many ranks that has. One tensor a segment, in the type in which gradients add up.
void reduce_quantized(ir::Routine& r, const ir::Program& program, const ir::Unit& unit, bool at_random,
                      const std::vector<ir::TensorId>& from, const std::vector<ir::TensorId>& to, const ir::AxisList& group);

// to = the sums of `from` over `scattered`, then `shared`: each rank its shard of the first, which ranks of the second have
// alike. As reduce_quantized over both, and then a gather in kSharedBits.
void all_reduce_quantized(ir::Routine& r, const ir::Program& program, const ir::Unit& unit, bool at_random,
                          const std::vector<ir::TensorId>& from, const std::vector<ir::TensorId>& to,
                          const ir::AxisList& scattered, const ir::AxisList& shared);

}  // namespace lockstep::passes
