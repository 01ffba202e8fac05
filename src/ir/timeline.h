// When the ops of one step ran on one rank: by the executor's clock (`train --trace`) or the simulator's (`plan`). One form
// for both, so that the two can be laid over each other. Times are seconds from the beginning of the step.
#pragma once

#include <vector>

#include "ir/kinds.h"
#include "ir/program.h"

namespace lockstep::ir {

struct TimedOp {
    int call = -1, op = -1;  // op -1: the call waited for calls of another queue
    double start_s = 0, end_s = 0;
    double ready_s = 0;  // collectives: when the last member had come; else start_s
};

struct Timeline {
    const Program* program = nullptr;  // that the rank runs, which outlives this
    const Entry* entry = nullptr;
    // By the queue in which they ran. Without communication threads all are in the compute queue's.
    ByStepQueue<std::vector<TimedOp>> threads;
    double data_begin_s = 0, data_end_s = 0;  // reading samples
    double end_s = 0;                         // of the step
};

// An op that only gives bytes another name: nothing runs, nothing is recorded.
inline bool is_view(const Routine& routine, const Op& op) {
    return (op.kind == kRename || op.kind == kBlock) && routine.tensors[op.out[0]].view_of >= 0;
}

// Empty, with room for all that a step of the entry can record: filling it allocates nothing.
Timeline room_for(const Program& program, const Entry& entry);

// Sets ready_s of every collective and transfer from when its members began it. timelines[r] is of rank r; all of one clock.
void match_collectives(std::vector<Timeline>& timelines);

}  // namespace lockstep::ir
