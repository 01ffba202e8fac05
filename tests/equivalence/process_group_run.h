// A drawn layout trained, saved and gone on with by the processes of a job, held to the same by one process: the same
// bits.
#pragma once

#include <optional>
#include <string>

#include "comm/process_group.h"
#include "tests/equivalence/draw.h"

namespace lockstep::testing {

struct Saved {
    Outcome outcome;
    std::string checkpoint;  // its folder
};

// A draw whose ranks `processes` processes can share, with checkpoints; nothing where the seed makes none, or
// none of such recipes.
std::optional<Draw> draw_for(const std::vector<int>& host_of, uint64_t seed, Dtype dtype,
                             bool (*of)(const compile::Recipe&) = nullptr);
// Two steps, a save under `root`, a third step beside it.
Saved train_and_save(const Draw& draw, const std::string& root, comm::ProcessGroup& group);
// The weights that a new trainer has loaded.
runtime::GlobalTensors weights_of(const Draw& draw, const std::string& checkpoint, comm::ProcessGroup& group);
// Why the two are not the same, bit by bit; empty where they are.
std::string difference_of(const Saved& threads, const Saved& processes);

}  // namespace lockstep::testing
