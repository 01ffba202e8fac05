// [activation_checkpoint]: what backward finds saved. With modes "budget" and "memory_budget" it is solved so that the exact
// plan stays within given bytes in the least time: a driver above the passes, which plans memory for each list that it
// considers. It moves instances, one at a time and the last first, from one point of the hull of choices to the next, in the
// order of time won per byte, as far as the plan fits;
// then the instance that would have moved next as far as its other choices go.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "compile/config.h"
#include "compile/refusal.h"
#include "passes/recompute_policies.h"

namespace lockstep::compile {

// How the programs that some lists lead to are sized: all, or that of one pipeline rank. Not exact: with as few microbatches as
// fill every rank, and by the least bytes that any offsets of buffers need. This is at most what is exact, in a fraction of the
// time.
//
// `enough_bytes`: once one rank needs more than that, the least bytes of the others will do.
struct Sizing {
    std::optional<int64_t> pipeline_rank = {};
    bool exact = true;
    std::optional<int64_t> enough_bytes = {};
};
// The arenas, in bytes, by pipeline rank.
using ArenaBytes = std::function<std::vector<int64_t>(const std::vector<passes::SaveList>&, const Sizing&)>;

// For a program before `recompute`. Refuses a budget that even full recompute exceeds: recipe.recompute_budget.
OrRefusal<std::vector<passes::SaveList>> save_lists(const Config::ActivationCheckpoint& config, const ir::Program& placed,
                                                    const ArenaBytes& arena_bytes,
                                                    const passes::OpSeconds& time_s = passes::Rates{});

}  // namespace lockstep::compile
