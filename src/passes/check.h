// Requires: sealed programs, one a rank (equal pointers where ranks run the same one, as they normally do).
// Proves, or refuses with the first thing found:
//   order    every rank reaches the same collectives of its groups in the same order, even if all of its communication shared one
//            queue: no deadlock
//   memory   every value that is read was written before, through the same buffer, by a call that happens before the reader in
//            every execution; bytes are reused only after their last reader; gathered parameters are freed once
//   meaning  every gradient holds each microbatch's contribution once, is reduced once, is counted in the norm once and is
//            used by one update, after the step's norm and loss are known; weights are not read after their update
// for the entries of two consecutive steps (streams join at a step's end, so what carries over are the states alone).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ir/program.h"

namespace lockstep::passes {

struct Refusal {
    std::string reason;   // "order", "memory", "meaning", "cut", or an invariant of ops/verify.h
    std::string message;  // rank, call and buffer
};

std::optional<Refusal> check(const std::vector<const ir::Program*>& ranks);
// Of it the proof that no rank waits forever. Assumes what ops/verify.h does.
std::optional<Refusal> check_order(const std::vector<const ir::Program*>& ranks);

}  // namespace lockstep::passes
