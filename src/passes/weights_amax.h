// Weights that are cast to float8 (passes/float8_products): the routines of their unit find their largest sizes once an entry, and
// make codes of them where they cross ranks as such.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ir/program.h"

namespace lockstep::passes {

// Gives each group of weights that shares a scale its place in the state of its block: a number in a cache line of its own.
void place_weights_amax(ir::Program& program);

// Of a unit. Groups have the names of Tensor::source. Requires places.
class WeightsAmax {
public:
    WeightsAmax(const ir::Program& program, const ir::Unit& unit);

    bool is_needed() const { return state_ >= 0; }
    // Fills the state from the weights of all ranks, with what forward and backward read of them. A tensor a segment.
    void find(ir::Routine& r, const std::vector<ir::TensorId>& weights) const;
    // to[i] = from[i] as codes, a tensor a segment. Padding becomes 0.
    void cast(ir::Routine& r, const std::vector<ir::TensorId>& from, const std::vector<ir::TensorId>& to) const;

private:
    struct Range {
        size_t segment;
        int64_t begin, end;
    };
    std::vector<Range> ranges_of(const std::string& group) const;
    std::map<std::string, ir::TensorId> port(ir::Routine& r, ir::Access access) const;

    const ir::Program& program_;
    const ir::Unit& unit_;
    ir::StateId state_ = -1;
    std::map<std::string, int64_t> places_;  // of groups, in bytes
};

}  // namespace lockstep::passes
