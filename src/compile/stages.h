// Decides which blocks make a stage, which pipeline rank runs it, and in what order each rank runs the forwards and backwards
// of its stages. The recipe's keys decide; what they leave open is decided by the cost of the blocks.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "compile/layout.h"
#include "compile/refusal.h"
#include "passes/assign_stages.h"
#include "schedules/transfers.h"

namespace lockstep::compile {

using StageBlocks = std::vector<std::vector<ir::BlockInstance>>;  // by stage

// What the keys say of stages: all that can be refused.
struct StagePlan {
    schedules::Table table;          // of the train entry. Empty if there is one pipeline rank
    std::optional<StageBlocks> cut;  // nothing: by the cost of the blocks
};

struct Stages {
    passes::Cut cut;
    schedules::Table table;
    // What each pipeline rank runs, sends and receives, by entry. Empty if there is one pipeline rank.
    std::vector<std::map<ir::EntryKind, std::vector<schedules::Step>>> rows;
};

// The recipe's schedule, by name or from a CSV file, and the cut of these blocks into its stages. The cut follows
// parallelism.module_fqns_per_model_part if it is set. Else it follows TorchTitan's rule if layers_per_stage,
// first_stage_less_layers or last_stage_less_layers is set. A refusal is a UserError pipeline.* or recipe.*, which names the
// key to change.
OrRefusal<StagePlan> plan_stages(const Config& config, const Layout& layout, const std::vector<ir::Block>& blocks);

// A cut that is left open is the one whose costliest stage is cheapest, in executed FLOPs of `whole`, whose kernels are already
// chosen.
Stages stages_of(const StagePlan& plan, const ir::Program& whole);

// Which microbatches of a long step a program has.
enum class Microbatches {
    All,      // only such a program is run
    Steady,   // enough that each further one takes as long as the one before, and needs no memory but its input
    Fullest,  // enough that each further one needs hardly any memory but its input
};

// How many microbatches that is of a step of these blocks. Every rank must hold as many microbatches as it ever will. All of
// the step stand for it if the schedule does not reach that state (GPipe, LoopedBFS, a CSV file), or if several stages a rank
// take microbatches in rounds that are not of one a rank. Steady: also if the schedule settles late (InterleavedZeroBubble,
// ZBVZeroBubble), so that ranks may wait, or hold transfers and gradients side by side, for the first time after many rounds.
int64_t count_of(Microbatches which, const Config& config, const Layout& layout, const std::vector<ir::Block>& blocks);

// Which kinds of backwards a schedule has: whole ones, ones in two parts (input, weight), or both.
struct Backwards {
    bool whole = true, in_parts = false;
};
Backwards backwards_of(const schedules::Table& table);

}  // namespace lockstep::compile
