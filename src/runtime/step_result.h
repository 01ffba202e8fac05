// What a step has come to. Ranks note the step's control and the loss scale while they run; the result is read once they have
// ended. The notes of two steps in a row are kept apart, so that one may begin before the result of the other is read.
#pragma once

#include <cstdint>

#include "mesh/mesh.h"
#include "runtime/ranks.h"

namespace lockstep::runtime {

struct StepResult {
    int64_t step = 0;              // counted from 1
    double loss = 0;               // mean over the step's valid targets; with islands, the mean of theirs
    double grad_norm = 0, lr = 0;  // with islands, the largest norm of theirs
    bool committed = true;  // false: loss or norm was not finite and no state has changed (of an island), but for the loss scale
    // The scale of this step's loss, and of the next one's: half of it where gradients overflowed. 0: there is none.
    double loss_scale = 0, next_loss_scale = 0;
    // Only the scale was too large: another step may count.
    bool overflowed() const { return !committed && next_loss_scale < loss_scale; }
    double step_time_s = 0;  // of the whole step
    double data_time_s = 0;  // the part of step_time_s in which the first rank here reads samples
};

// Before and after the entry train of step `step`, on the thread of the rank.
void note_before(Executor& executor, int64_t step);
void note_after(Executor& executor, int64_t step);
// Sets what the notes of step result.step say, of all islands of the job. Every process calls it at the same time.
void read_notes(Ranks& ranks, const mesh::Mesh& mesh, StepResult& result);

}  // namespace lockstep::runtime
