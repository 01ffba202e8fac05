// The end of a step, derived a second time from units, segments, states and mesh: what the routines that serve units compute,
// and those of the program's scalars. Models' routines (Forward, Loss, Backward) are not looked at.
#pragma once

#include <string>
#include <vector>

#include "ir/program.h"

namespace lockstep::check {

// Requires a program that ops/verify.h accepts and whose places are right (places.h). Proves of each such routine:
//   - gathers and fetches bring every segment of the weights to its place;
//   - of a segment's gradients each axis over which they are partial is summed over once, on the way from the microbatch to what
//     norm and update read; sums are no maxima;
//   - the norm has the squares of each segment once, of each element on one of the ranks that have it; so has the loss;
//   - an update reads the weights, gradient and moments of its own segment and the step's control, and writes them;
//   - islands' change of each segment is averaged over all islands, and moves that segment's anchor and weights;
//   - mirrors exchange the segments that they share, in one order.
// Empty, or the first thing wrong: routine, op and value.
std::string wrong_step_end(const ir::Program& program);

}  // namespace lockstep::check
