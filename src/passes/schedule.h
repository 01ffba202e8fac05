// Requires: routines with ports; units.
// Produces: the buffers of a step and, for every entry, its list of calls with their bindings. The train entry: count and
//   begin; for every step of this pipeline rank's row the forwards and loss chunks, or backwards, of a stage, or a transfer,
//   each with the gathers and frees of the units that it binds; reductions behind the last call that accumulates into a unit
//   (of a microbatch, or of the step); then stats, update. This list is the only loop.
// Leaves alone: routines, but for the sizes of their ports.
#pragma once

#include <map>
#include <set>
#include <vector>

#include "ir/program.h"
#include "schedules/transfers.h"

namespace lockstep::passes {

enum class ReduceGradients { EachMicrobatch, OnceAStep };

struct ScheduleOptions {
    // What this pipeline rank runs, by entry. An entry without a row runs its one stage, microbatch by microbatch.
    std::map<ir::EntryKind, std::vector<schedules::Step>> rows;
    ReduceGradients reduce = ReduceGradients::EachMicrobatch;  // where gradients are split
    // Number of stages whose gathered parameters stay between uses: those that the row runs next. 0: parameters are freed after
    // each routine.
    int64_t resident_stages = 0;
    int64_t fragments = 0;      // of the model, each with an entry in which islands meet
    bool names_buffers = true;  // false: their names are empty, for a program that nobody prints or verifies
};

// Which stages of a pipeline rank keep their gathered parameters.
class ResidentStages {
public:
    // stages: of each step of the rank's row; -1: it runs none.
    ResidentStages(const std::vector<int64_t>& stages, int64_t resident);
    // The `resident` stages that run next, from the step on.
    std::set<int64_t> from(size_t step) const;

private:
    std::map<int64_t, std::vector<size_t>> steps_of_;  // by stage, ascending
    int64_t resident_;
};

ir::Program schedule(ir::Program program, const ScheduleOptions& options);

}  // namespace lockstep::passes
