// A pipeline schedule as data: for each rank, the order of its forwards and backwards. Position in a row is order, not time: an
// idle cell says where a rank would wait if all work took equally long; nothing that runs a table needs idle cells.
// Letters and numbering are those of torch.distributed.pipelining: stages count from 0 at the embedding, microbatches from 0.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::schedules {

// Backward makes both gradients of its stage; BackwardInput only that of its input, and BackwardWeight, later,
// those of weights.
enum class Work : char { Idle = '.', Forward = 'F', Backward = 'B', BackwardInput = 'I', BackwardWeight = 'W' };

struct Action {
    Work work = Work::Idle;
    int64_t stage = 0, microbatch = 0;
    bool operator==(const Action&) const = default;
};
using Row = std::vector<Action>;

struct Table {
    int64_t stages = 0, microbatches = 0;
    std::vector<Row> rows;  // one a rank
    bool operator==(const Table&) const = default;
};

// Does this action make the gradient that the stage before waits for?
inline bool is_backward(Work work) { return work == Work::Backward || work == Work::BackwardInput; }
// Is this the last action that needs what the forward of its stage and microbatch saved?
inline bool is_release(Work work) { return work == Work::Backward || work == Work::BackwardWeight; }

std::string text_of(const Action& action);  // "2F0"; empty for an idle cell

}  // namespace lockstep::schedules
