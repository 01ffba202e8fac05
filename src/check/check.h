// Requires: sealed programs, one a rank (equal pointers where ranks run the same one, as they normally do).
// Proves, or refuses with the first thing found:
//   order    every rank reaches the same collectives of its groups in the same order, even if all of its communication shared
//            one queue: no deadlock
//   memory   every op reads and writes inside its port or scratch, and finds there the values that it names; every port,
//            scratch and buffer lies in the arena of its place; what a snapshot writes lies in the host's memory, and nothing
//            else does; what a call reads was written before, through the same buffer, by a call that happens before it in
//            every execution; bytes are reused only after their last reader; gathered parameters are freed once; no entry
//            overwrites what any entry keeps from step to step;
//            a workspace is what its kernel needs, if the catalog of kernels is given
//   accounting  every call that contributes to a gradient runs once a microbatch; a gradient is reduced once, counted in the
//            norm once and used by one update, after the step's norm and loss are known;
//            weights are not read after their update; each axis over which a segment's gradient is partial is summed over
//            once; the norm has the square of each element from one rank; an update reads the weights, the gradient and the
//            moments of its segment and the step's control; segments of a rule have the same hyperparameters; gathers bring
//            each segment whole; islands take the mean of their changes; what outlives the run is saved, under the name of what
//            it is; every forward runs, and an evaluation sums its loss over all ranks; the ops of Muon's `orthogonalize`
//            are its iteration
// for the entries of two consecutive steps (queues join at a step's end, so only the states carry over).
// Not proved: what the ops of models' routines (Forward, Loss, Backward) mean, which meaning/ tries out, and numbers that
// occur once, as the norm at which gradients are clipped, which meaning/ compares with the recipe.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ir/program.h"
#include "ops/catalog.h"

namespace lockstep::check {

struct Refusal {
    std::string reason;   // "order", "memory", "accounting", "cut", or an invariant of ops/verify.h
    std::string message;  // rank, call and buffer
};

// kernels: those of the machine; nothing: workspaces are believed.
std::optional<Refusal> prove(const std::vector<const ir::Program*>& ranks, const ops::KernelCatalog* kernels = nullptr);
// Only the part `order`: no rank waits forever. Requires a program that ops/verify.h accepts.
std::optional<Refusal> prove_order(const std::vector<const ir::Program*>& ranks);

}  // namespace lockstep::check
