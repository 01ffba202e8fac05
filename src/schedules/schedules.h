// The named schedules. Each equals, cell by cell, the table of torch.distributed.pipelining under the same name; ZB-H1, which
// has no name there, is its InterleavedZeroBubble with one stage a rank.
//   GPipe (arXiv 1811.06965), 1F1B (2006.09503), Interleaved1F1B (2104.04473), LoopedBFS (2211.05953),
//   ZB-H1, InterleavedZeroBubble and ZBVZeroBubble (2401.10241).
// Guarantees: check_schedule finds nothing in a table made here.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "schedules/table.h"

namespace lockstep::schedules {

struct Schedule {
    std::string_view name, help;
    int64_t min_stages_per_rank = 1, max_stages_per_rank = 1;
    bool splits_backward = false;  // has I and W in place of B
    bool settles_late = false;     // a microbatch may take longer only after many rounds of the pipeline
};

struct Shape {
    int64_t ranks = 1, stages_per_rank = 1, microbatches = 1;
};

const std::vector<Schedule>& schedules();

// Names are compared without regard to case, as PyTorch does. Throws UserError: pipeline.unknown_schedule.
const Schedule& find_schedule(std::string_view name);

// Why the schedule cannot have this shape: pipeline.stages_per_rank, pipeline.rounds. Throws UserError:
// pipeline.unknown_schedule.
std::optional<UserError> objection(std::string_view name, const Shape& shape);

// Throws the objection.
Table make_schedule(std::string_view name, const Shape& shape);

}  // namespace lockstep::schedules
