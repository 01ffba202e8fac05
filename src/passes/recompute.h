// Requires: placed forward and backward routines; parameters still logical.
// Produces: for every save-list a forward that saves only these values, and a backward that computes the others again: the
//   forward's ops are cloned in front of the backward's, dead ones dropped (the block's last product and reduce-scatter),
//   reshards of the same value shared with backward. With nothing on the list this is full recompute (Chen et al. 2016, arXiv
//   1604.06174; collectives run again as in Megatron-LM); with some values on it, selective (Korthikanti et al. 2022, arXiv
//   2205.05198, section 5).
// Leaves alone: blocks that occur once (embedding, head), instances without a list.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "ir/program.h"

namespace lockstep::passes {

// What the backward of these instances of a block finds saved. Whatever else it needs it computes again.
struct SaveList {
    std::string block;
    std::vector<int64_t> instances;  // ascending; empty: all
    std::set<std::string> values;    // names of the forward's tensors, whole ones (see savable in passes/recompute_policies.h)
    bool operator==(const SaveList&) const = default;
};

ir::Program recompute(ir::Program program, const std::vector<SaveList>& lists);

}  // namespace lockstep::passes
